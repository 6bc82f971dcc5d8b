#include "client/cli/output/records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/printable.h"

namespace stemma::cli {
namespace {

std::string CellText(const Record& value) {
  if (value.is_null() || (value.is_object() && value.empty())) return "-";
  if (value.is_string()) return Printable(value.get<std::string>(), "\\n");
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_float()) return absl::StrFormat("%.6g", value.get<double>());
  if (value.is_array()) return absl::StrFormat("%d", value.size());
  return JsonText(value);
}

std::string Cell(const Record& record, const std::string& key) {
  const auto found = record.find(key);
  return found == record.end() ? "-" : CellText(*found);
}

std::string Padded(const std::string& text, int width, bool left) {
  const std::string padding(std::max(0, width - static_cast<int>(text.size())), ' ');
  return left ? text + padding : padding + text;
}

void Flatten(const Record& value, const std::string& path, std::vector<std::pair<std::string, std::string>>& lines) {
  if (!value.is_object() || value.empty()) {
    lines.emplace_back(path, value.is_array() ? JsonText(value) : CellText(value));
    return;
  }
  for (const auto& [key, child] : value.items()) {
    Flatten(child, path.empty() ? key : absl::StrCat(path, ".", key), lines);
  }
}

}  // namespace

std::string JsonText(const Record& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Record::error_handler_t::replace);
}

RecordWriter::RecordWriter(OutputOptions options, std::vector<Column> columns, std::ostream& out)
    : options_(options), columns_(std::move(columns)), out_(out) {
  for (Column& column : columns_) column.width = std::max<int>(column.width, column.header.size());
}

void RecordWriter::Write(const Record& record) {
  if (options_.format == OutputFormat::kJson) {
    out_ << JsonText(record) << std::endl;
    return;
  }
  WriteHeader();
  std::vector<std::string> cells;
  for (const Column& column : columns_) cells.push_back(Cell(record, column.key));
  WriteRow(cells, /*bold=*/false);
}

void RecordWriter::WriteHeader() {
  if (header_written_) return;
  header_written_ = true;
  std::vector<std::string> headers;
  for (const Column& column : columns_) headers.push_back(column.header);
  WriteRow(headers, options_.bold_headers);
}

void RecordWriter::WriteRow(const std::vector<std::string>& cells, bool bold) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    line += Padded(cells[i], columns_[i].width, columns_[i].left);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  if (bold) line = "\x1b[1m" + line + "\x1b[0m";
  out_ << line << std::endl;
}

void WriteRecords(OutputOptions options, std::vector<Column> columns, const std::vector<Record>& records,
                  std::ostream& out) {
  for (Column& column : columns) {
    for (const Record& record : records) {
      column.width = std::max<int>(column.width, Cell(record, column.key).size());
    }
  }
  RecordWriter writer(options, std::move(columns), out);
  for (const Record& record : records) writer.Write(record);
}

void WriteFields(OutputOptions options, const Record& record, std::ostream& out) {
  if (options.format == OutputFormat::kJson) {
    out << JsonText(record) << std::endl;
    return;
  }
  std::vector<std::pair<std::string, std::string>> lines;
  Flatten(record, "", lines);
  int width = 0;
  for (const auto& [key, value] : lines) width = std::max<int>(width, key.size());
  for (const auto& [key, value] : lines) {
    out << (value.empty() ? key : Padded(key, width, /*left=*/true) + "  " + value) << "\n";
  }
  out.flush();
}

}  // namespace stemma::cli
