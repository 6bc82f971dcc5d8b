// What a message holds that this program does not know.
#include "common/admission/known_fields.h"

#include "gtest/gtest.h"
#include "stemma/v1/training.pb.h"

namespace stemma {
namespace {

constexpr int kField = 1000, kValue = 77;

v1::UpdateResult ResultOf(int steps) {
  v1::UpdateResult result;
  for (int i = 0; i < steps; ++i) (*result.add_steps()->mutable_metrics())["actor/loss"] = i;
  return result;
}

TEST(KnownFieldsTest, TheFirstThatIsNotKnownIsNamedWithItsPlace) {
  v1::UpdateResult result = ResultOf(2);
  EXPECT_EQ(FirstUnknown(result), "");
  v1::StepResult& step = *result.mutable_steps(1);
  step.GetReflection()->MutableUnknownFields(&step)->AddVarint(kField, 1);
  EXPECT_EQ(FirstUnknown(result), "field 1000 of steps[1]");
  result = ResultOf(1);
  result.mutable_steps(0)->set_outcome(static_cast<v1::StepResult::Outcome>(kValue));
  EXPECT_EQ(FirstUnknown(result), "value 77 of outcome of steps[0]");
}

// Journals are read through it, and what is read stays: a map that is walked by reflection is there twice from then on.
TEST(KnownFieldsTest, LookingTakesNoMemory) {
  const v1::UpdateResult result = ResultOf(100);
  const size_t before = result.SpaceUsedLong();
  EXPECT_EQ(FirstUnknown(result), "");
  EXPECT_EQ(result.SpaceUsedLong(), before);
  const v1::StepResult& step = result.steps(0);
  const auto* metrics = step.GetDescriptor()->FindFieldByName("metrics");
  EXPECT_GT(step.GetReflection()->GetRepeatedMessage(step, metrics, 0).ByteSizeLong(), 0u);
  EXPECT_GT(result.SpaceUsedLong(), before) << "the control";
}

}  // namespace
}  // namespace stemma
