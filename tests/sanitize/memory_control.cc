// The control of `make sanitize` under asan: reads behind an array, or with the word `overflow` adds beyond an int.
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>

int main(int argc, char**) {
  // The numbers come from outside, or a compiler would not let either of them happen.
  if (argc > 1) {
    int number = INT_MAX - 1;
    for (int i = 0; i < argc; ++i) ++number;
    std::printf("%d\n", number);
    return 0;
  }
  const auto bytes = std::make_unique<char[]>(8);
  std::memset(bytes.get(), 1, 8);
  std::printf("%d\n", bytes[static_cast<size_t>(8 * argc)]);
  return 0;
}
