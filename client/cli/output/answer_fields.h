// Fields of what the server's binary answers to commands that plan without a server.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "client/cli/output/records.h"

namespace stemma::cli {

// Returns a number; 0 where there is none, or null.
double NumberIn(const Record& record, const char* key);

// Returns "1 request", "3 steps".
std::string Counted(double count, const char* what);

// Returns "trace.jsonl: the first 8 requests, 88 steps, 279k tokens".
std::string TraceText(const Record& answer);

// An answer's meshes, in its order.
struct AnsweredMeshes {
  std::vector<Record> possible, impossible;
};
AnsweredMeshes MeshesOf(const Record& answer);

// What a command's table of possible meshes shows: the cells of each, and the columns.
struct MeshTable {
  Record (*cells)(const Record& mesh);
  std::vector<Column> columns;
};

// Prints what the answer assumes, the table of its possible meshes, and the others with their reasons; a table without
// rows is left out.
void WriteMeshTables(const OutputOptions& options, const Record& assumptions, const AnsweredMeshes& meshes,
                     const MeshTable& table, std::ostream& out);

}  // namespace stemma::cli
