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

// Prints meshes with their reasons; nothing where there are none.
void WriteImpossible(const OutputOptions& options, const std::vector<Record>& meshes, std::ostream& out);

}  // namespace stemma::cli
