// A progress bar on stderr, on a terminal only; elsewhere it draws nothing at all.
#pragma once

#include <cstdint>
#include <string>

namespace stemma::cli {

class Progress {
 public:
  Progress(int64_t total, bool enabled) : total_(total), enabled_(enabled && total > 1) {}
  ~Progress() { Clear(); }

  void Show(int64_t done, const std::string& note);
  void Clear();  // before anything else is printed

 private:
  int64_t total_;
  bool enabled_;
  bool drawn_ = false;
};

}  // namespace stemma::cli
