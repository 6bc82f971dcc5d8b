// Files as bytes, for tests of everything that the server stores.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace stemma::server {

inline std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void SetBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace stemma::server
