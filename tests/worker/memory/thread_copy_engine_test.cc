#include "worker/memory/thread_copy_engine.h"

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/copy_engine_suite.h"

namespace stemma::testing {
namespace {

// On a CPU both ends are plain memory.
struct ThreadSide {
  static std::string WhyNot() { return ""; }
  CopyEngine& engine() { return engine_; }

  class Memory {
   public:
    explicit Memory(size_t count) : bytes_(count) {}
    void* data() { return bytes_.data(); }
    void Write(const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), bytes_.begin()); }
    Bytes Read() const { return bytes_; }

   private:
    Bytes bytes_;
  };
  using Device = Memory;
  using Host = Memory;

  ThreadCopyEngine engine_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Thread, CopyEngineTest, ThreadSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Thread, CopyEngineDeathTest, ThreadSide);

}  // namespace
}  // namespace stemma::testing
