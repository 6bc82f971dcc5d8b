// What commands print on stdout: records (JSON objects), as lines of JSON or as an aligned table.
//
// JSON is UTF-8; file names, which records hold, need not be: their other bytes become the replacement character.
// Table cells: floats with six significant digits, null and absent as "-", lists as their length.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace stemma::cli {

using Record = nlohmann::ordered_json;

enum class OutputFormat { kTable, kJson };

struct OutputOptions {
  OutputFormat format = OutputFormat::kTable;
  bool bold_headers = false;  // a terminal, and no NO_COLOR
};

struct Column {
  std::string key;  // of the record
  std::string header;
  int width = 0;      // at least the header's
  bool left = false;  // alignment; numbers stand right
};

// Prints records one by one as they come, in columns of fixed width; the header with the first one.
class RecordWriter {
 public:
  RecordWriter(OutputOptions options, std::vector<Column> columns, std::ostream& out);
  void Write(const Record& record);

 private:
  void WriteHeader();
  void WriteRow(const std::vector<std::string>& cells, bool bold);

  OutputOptions options_;
  std::vector<Column> columns_;
  std::ostream& out_;
  bool header_written_ = false;
};

// All records at once, columns as wide as their longest cell.
void WriteRecords(OutputOptions options, std::vector<Column> columns, const std::vector<Record>& records,
                  std::ostream& out);

// One record: "key  value" lines (a nested object's keys are joined by dots), or one JSON object.
void WriteFields(OutputOptions options, const Record& record, std::ostream& out);

// Returns the JSON of whatever is printed or written, on one line, or with so many spaces a level.
std::string JsonText(const Record& value, int indent = -1);

}  // namespace stemma::cli
