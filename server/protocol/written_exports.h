// The newest exports that this server has written, or may have: what their names stand for, so that a client whose
// answer was lost can tell its own export from another one's. Not kept beyond the server's end.
//
// Thread safety: none; owned by JobRunner.
// Invariant: at most kKept of them, each name once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace stemma::server {

struct WrittenExport {
  std::string name;
  std::string lineage;
  uint64_t step = 0;
  std::string dtype;  // as the request had it; "": it had none
};

class WrittenExports {
 public:
  static constexpr size_t kKept = 256;

  // Takes the place of an earlier one of the name, whose directory was removed.
  void Add(WrittenExport written);
  // Takes back that an export of the name may have been written.
  void Forget(const std::string& name);

  // Returns what is known of it, for the metadata of EXPORT_EXISTS: nothing where this server has not written it, or
  // did so long ago.
  std::map<std::string, std::string> FactsOf(const std::string& name) const;

 private:
  std::deque<WrittenExport> newest_last_;
};

}  // namespace stemma::server
