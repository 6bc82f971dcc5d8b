// A folder for targets whose product code takes a path: one of the process, which goes when the process ends well.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace stemma::fuzz {

class Scratch {
 public:
  Scratch() : folder_(std::filesystem::temp_directory_path() / ("fuzz-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string folder() const { return folder_.string(); }
  // Replaces the file, and returns its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path.string();
  }

 private:
  const std::filesystem::path folder_;
};

}  // namespace stemma::fuzz
