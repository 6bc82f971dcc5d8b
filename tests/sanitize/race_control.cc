// The control of `make sanitize` under tsan: two threads add to one number. Nothing waits for chance: whatever the
// order, the two accesses have none that the sanitizer knows of.
#include <cstdio>
#include <thread>

int main() {
  int number = 0;
  std::thread other([&number] { ++number; });
  ++number;
  other.join();
  std::printf("%d\n", number);
  return 0;
}
