// What a message takes in memory is known before it is decoded.
#include "common/admission/decoded_bytes.h"

#include <random>
#include <string>

#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "tests/common/admission/sent_stream.h"

namespace stemma {
namespace {

uint64_t Told(const std::string& bytes, int block_bytes = -1) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), block_bytes);
  return DecodedBytes(*v1::GroupPart::descriptor(), stream);
}

// Holds what is told against what the decoded message takes.
void Check(const v1::GroupPart& part, uint64_t at_most) {
  const std::string bytes = part.SerializeAsString();
  v1::GroupPart decoded;
  ASSERT_TRUE(decoded.ParseFromString(bytes));
  EXPECT_GE(Told(bytes), decoded.SpaceUsedLong());
  EXPECT_LE(Told(bytes), at_most);
  EXPECT_EQ(Told(bytes, 7), Told(bytes)) << "in whatever pieces it comes";
}

TEST(DecodedBytesTest, EmptyMessagesCountAsWhatTheyBecome) {
  v1::GroupPart group, more;
  for (int i = 0; i < 10'000; ++i) {
    group.mutable_group()->add_rollouts();
    more.mutable_more()->add_rollouts();
  }
  EXPECT_GT(group.SpaceUsedLong(), 60 * group.ByteSizeLong()) << "which is why they are counted";
  Check(group, 5'000'000);
  Check(more, 5'000'000);
}

TEST(DecodedBytesTest, LongStringsCountAsTheirBytes) {
  v1::GroupPart part;
  *part.mutable_group() = GoodGroup("g");
  part.mutable_group()->set_prompt_tokens(std::string(1 << 20, 'x'));
  Check(part, (1 << 20) + 5000);
}

TEST(DecodedBytesTest, FieldsThatNobodyKnowsCount) {
  v1::GroupPart numbers, groups, texts;
  for (int i = 0; i < 1000; ++i) {
    const auto unknown = [](v1::GroupPart& part) { return part.GetReflection()->MutableUnknownFields(&part); };
    unknown(numbers)->AddVarint(30, 1);
    unknown(texts)->AddLengthDelimited(30, "");
    google::protobuf::UnknownFieldSet* const inner = unknown(groups)->AddGroup(30);
    for (int j = 0; j < 3; ++j) inner->AddGroup(1 + j)->AddVarint(3, 1);
  }
  Check(numbers, 200'000);
  Check(texts, 200'000);
  Check(groups, 3'000'000);
}

TEST(DecodedBytesTest, BytesThatAreNoMessageEndTheWalk) {
  std::mt19937_64 random(20261128);
  v1::GroupPart part;
  *part.mutable_group() = GoodGroup("g");
  const std::string good = part.SerializeAsString();
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.substr(0, random() % (good.size() + 1));
    for (size_t n = random() % 4; n > 0 && !bytes.empty(); --n)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const uint64_t told = Told(bytes, 1 + static_cast<int>(random() % 9));
    v1::GroupPart decoded;
    if (decoded.ParseFromString(bytes)) {
      EXPECT_GE(told, decoded.SpaceUsedLong()) << i;
    }
    EXPECT_LT(told, 1'000'000u) << i;
  }
}

}  // namespace
}  // namespace stemma
