#include "client/cli/output/answer_fields.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/human.h"

namespace stemma::cli {

double NumberIn(const Record& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : 0;
}

std::string Counted(double count, const char* what) {
  return absl::StrFormat("%.0f %s%s", count, what, count == 1 ? "" : "s");
}

std::string TraceText(const Record& answer) {
  const std::string requests = Counted(NumberIn(answer, "requests"), "request");
  const bool more = answer.value("more_requests", false);
  std::string text = absl::StrCat(answer.value("trace", ""), ": ",
                                  !more                               ? requests
                                  : NumberIn(answer, "requests") == 1 ? "the first request"
                                                                      : absl::StrCat("the first ", requests));
  if (NumberIn(answer, "steps") == 0) return text;
  return absl::StrCat(text, ", ", Counted(NumberIn(answer, "steps"), "step"), ", ",
                      HumanCount(NumberIn(answer, "tokens")), " tokens");
}

AnsweredMeshes MeshesOf(const Record& answer) {
  AnsweredMeshes meshes;
  for (const Record& mesh : answer.value("meshes", Record::array())) {
    (mesh.value("possible", false) ? meshes.possible : meshes.impossible).push_back(mesh);
  }
  return meshes;
}

void WriteMeshTables(const OutputOptions& options, const Record& assumptions, const AnsweredMeshes& meshes,
                     const MeshTable& table, std::ostream& out) {
  std::vector<Record> rows;
  for (const Record& mesh : meshes.possible) rows.push_back(table.cells(mesh));
  WriteFields(options, assumptions, out);
  if (!rows.empty()) {
    out << "\n";
    WriteRecords(options, table.columns, rows, out);
  }
  if (meshes.impossible.empty()) return;
  out << "\n";
  WriteRecords(options, {{"mesh", "impossible", 10, true}, {"reason", "why", 3, true}}, meshes.impossible, out);
}

}  // namespace stemma::cli
