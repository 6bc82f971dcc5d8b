#include "client/cli/output/progress.h"

#include <iostream>

#include "absl/strings/str_cat.h"

namespace stemma::cli {
namespace {

constexpr int kBarCells = 24;
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

void Progress::Show(int64_t done, const std::string& note) {
  if (!enabled_) return;
  const int filled = static_cast<int>(kBarCells * done / total_);
  std::cerr << kClearLine << "[" << std::string(filled, '#') << std::string(kBarCells - filled, ' ')
            << absl::StrCat("] ", done, "/", total_, " ", note) << std::flush;
  drawn_ = true;
}

void Progress::Clear() {
  if (drawn_) std::cerr << kClearLine << std::flush;
  drawn_ = false;
}

}  // namespace stemma::cli
