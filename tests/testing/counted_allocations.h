// Counts what a thread allocates by `new`, for tests of costs that seconds do not test. It replaces operator new of the
// whole program: one source of a program includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace stemma::testing {

struct Allocations {
  int64_t count = 0, bytes = 0;
};
inline thread_local Allocations allocations_of_thread;

// Returns what `work` allocated, freed since or not.
template <typename Work>
Allocations AllocationsOf(const Work& work) {
  const Allocations before = allocations_of_thread;
  work();
  return {allocations_of_thread.count - before.count, allocations_of_thread.bytes - before.bytes};
}

}  // namespace stemma::testing

// A sanitizer's own would not come from malloc, which gives it back.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++stemma::testing::allocations_of_thread.count;
  stemma::testing::allocations_of_thread.bytes += static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}
void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
