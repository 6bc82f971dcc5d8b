// A copy that fails, wherever the store learns of it.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/fake_copy_engine.h"
#include "tests/worker/memory/tape_entries.h"
#include "worker/memory/offload_store.h"

namespace stemma::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kFailingRows = 64;

class OffloadFailuresTest : public CountedMemoryTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(arena_->current_bytes(), 0);
    EXPECT_EQ(device_bytes(), 0);
  }
  std::unique_ptr<HostArena> arena_ = HostArena::Create(8 * LayerEntryBytes(kFailingRows)).value();
};

TEST_F(OffloadFailuresTest, ACopyOutThatFailsNamesItsEntryAndEveryLaterCallFails) {
  FailingCopyEngine engine(/*failing=*/1);
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine);
  store.Put(10, LayerEntry(0, kFailingRows));
  store.Put(11, LayerEntry(1, kFailingRows));
  EXPECT_THAT([&] { store.Poll(); }, ThrowsMessage<c10::Error>(AllOf(
                                         HasSubstr("tape entry 11 of 49408 bytes could not be copied while leaving"),
                                         HasSubstr("the link is down"))));
  EXPECT_THAT([&] { store.Take(10); }, ThrowsMessage<c10::Error>(HasSubstr("the link is down")));
  EXPECT_THROW(store.ConsumeSoon(), c10::Error);
}

TEST_F(OffloadFailuresTest, ACopyOutThatFailsWhileDrainingIsReported) {
  FailingCopyEngine engine(/*failing=*/0);
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine);
  store.Put(0, LayerEntry(0, kFailingRows));
  EXPECT_THROW(store.DrainTo(0), c10::Error);
}

// The engine tells the two apart: the one is the step's answer, the other ends the process.
TEST_F(OffloadFailuresTest, ADeviceThatFailedIsThrownAsOneAndNoOtherErrorIs) {
  FailingCopyEngine refuses(/*failing=*/0), lost(/*failing=*/0, absl::UnavailableError("an illegal access"));
  OffloadStore of_refused(/*headroom_bytes=*/0, *arena_, refuses), of_lost(/*headroom_bytes=*/0, *arena_, lost);
  of_refused.Put(0, LayerEntry(0, kFailingRows));
  of_lost.Put(0, LayerEntry(0, kFailingRows));
  EXPECT_THAT([&] { of_lost.Poll(); }, ThrowsMessage<c10::AcceleratorError>(HasSubstr("an illegal access")));
  try {
    of_refused.Poll();
    FAIL() << "the copy failed";
  } catch (const c10::AcceleratorError&) {
    FAIL() << "the device did not";
  } catch (const c10::Error&) {
  }
}

TEST_F(OffloadFailuresTest, ADemandLoadThatFailsIsReportedAndNothingIsHandedOut) {
  FailingCopyEngine engine(/*failing=*/2);
  OffloadStore store(/*headroom_bytes=*/0, *arena_, engine);
  store.Put(0, LayerEntry(0, kFailingRows));
  store.Put(1, LayerEntry(1, kFailingRows));
  store.DrainTo(0);
  EXPECT_THAT([&] { store.Take(1); }, ThrowsMessage<c10::Error>(HasSubstr("entry 1 of 49408 bytes could not be copied "
                                                                          "while arriving")));
}

TEST_F(OffloadFailuresTest, APrefetchThatFailsIsReportedByTheNextCall) {
  FailingCopyEngine engine(/*failing=*/2);
  OffloadStore store(2 * LayerEntryBytes(kFailingRows), *arena_, engine);
  store.Put(0, LayerEntry(0, kFailingRows));
  store.Put(1, LayerEntry(1, kFailingRows));
  store.DrainTo(0);
  store.ProducingEnded();
  store.ConsumeSoon();
  EXPECT_THROW(store.Poll(), c10::Error);
}

}  // namespace
}  // namespace stemma::testing
