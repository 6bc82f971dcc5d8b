#include "common/base/digest.h"

#include <set>
#include <string>
#include <vector>

#include "common/base/arrays.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

v1::UpdateHeader Header() {
  v1::UpdateHeader header;
  header.mutable_request()->set_request_id("a");
  header.mutable_loss()->set_loss_mode("vanilla");
  header.mutable_adam()->set_learning_rate(1e-6);
  return header;
}

v1::PromptGroup Group(const std::string& uid, int num_rollouts) {
  v1::PromptGroup group;
  group.set_uid(uid);
  group.set_prompt_tokens(PackArray(std::vector<int32_t>{1, 2, 3}));
  for (int i = 0; i < num_rollouts; ++i) {
    v1::Rollout& rollout = *group.add_rollouts();
    rollout.set_rollout_id(uid + "/" + std::to_string(i));
    rollout.set_response_tokens(PackArray(std::vector<int32_t>{4 + i}));
    rollout.set_advantage(0.5);
  }
  return group;
}

TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(Sha256().FinishHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 sha;
  sha.Update("a");
  sha.Update("bc");
  EXPECT_EQ(sha.FinishHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

std::string U32(uint32_t n) { return {reinterpret_cast<const char*>(&n), 4}; }
std::string U64(uint64_t n) { return {reinterpret_cast<const char*>(&n), 8}; }
std::string PrefixedText(const std::string& text) { return U64(text.size()) + text; }

// The walk itself, of Header() and of groups like Group()'s, byte by byte: a change of it would refuse every request
// that is repeated over an upgrade.
std::string WrittenOut(const std::vector<v1::PromptGroup>& groups) {
  Sha256 sha;
  sha.Update(U32(1) + U32(0));                                                         // request, nothing that counts
  sha.Update(U32(2) + U32(1) + PrefixedText("vanilla") + U32(0));                      // loss
  sha.Update(U32(3) + U32(1) + U64(std::bit_cast<uint64_t>(1e-6)) + U32(0) + U32(0));  // adam, end of header
  sha.UpdateInteger(groups.size());
  for (const v1::PromptGroup& group : groups) {
    Sha256 group_sha;
    group_sha.Update(PrefixedText(group.uid()) + PrefixedText(group.prompt_tokens()) + U64(0) + PrefixedText(""));
    for (const v1::Rollout& rollout : group.rollouts()) {
      group_sha.Update(U32(1) + PrefixedText(rollout.rollout_id()) + U32(2) + PrefixedText(rollout.response_tokens()) +
                       U32(7) + U64(std::bit_cast<uint64_t>(rollout.advantage())) + U32(0));
    }
    const Sha256Digest digest = group_sha.Finish();
    sha.Update({reinterpret_cast<const char*>(digest.data()), digest.size()});
  }
  return sha.FinishHex();
}

TEST(PayloadDigestTest, TheWalkIsTheOneDescribed) {
  EXPECT_EQ(DigestOf(Header(), {}), WrittenOut({}));
  EXPECT_EQ(DigestOf(Header(), {Group("g", 1)}), WrittenOut({Group("g", 1)}));
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Adds the fields of a message, and of those in it, that the walk would end the process over.
void FieldsWithoutARule(const Descriptor& message, std::vector<std::string>& fields) {
  static const std::set<FieldDescriptor::CppType> ruled = {
      FieldDescriptor::CPPTYPE_BOOL, FieldDescriptor::CPPTYPE_UINT32, FieldDescriptor::CPPTYPE_UINT64,
      FieldDescriptor::CPPTYPE_ENUM, FieldDescriptor::CPPTYPE_DOUBLE, FieldDescriptor::CPPTYPE_STRING};
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated() || (!is_message && ruled.count(field.cpp_type()) == 0)) fields.push_back(field.full_name());
    if (is_message && !field.is_repeated()) FieldsWithoutARule(*field.message_type(), fields);
  }
}

// A request's fields are its sender's choice, and no choice of a sender ends the server.
TEST(PayloadDigestTest, EveryFieldThatIsWalkedHasARule) {
  std::vector<std::string> fields;
  FieldsWithoutARule(*v1::UpdateHeader::descriptor(), fields);
  FieldsWithoutARule(*v1::Rollout::descriptor(), fields);
  EXPECT_TRUE(fields.empty()) << fields.front();
  FieldsWithoutARule(*v1::PromptGroup::descriptor(), fields);
  EXPECT_EQ(fields, std::vector<std::string>{"stemma.v1.PromptGroup.rollouts"}) << "the control";
}

TEST(PayloadDigestTest, HowManyThreadsHashDoesNotMatter) {
  std::vector<v1::PromptGroup> groups;
  for (int i = 0; i < 40; ++i) {  // 30 MB: four threads, where there are as many cores
    groups.push_back(Group(std::to_string(i), i % 3));
    groups.back().mutable_prompt_tokens()->append(static_cast<size_t>(i % 7) << 18, static_cast<char>(i));
  }
  const std::string expected = WrittenOut(groups);
  for (int round = 0; round < 10; ++round) EXPECT_EQ(DigestOf(Header(), groups), expected);
}

TEST(PayloadDigestTest, IdWaitExpectedLineageAndTraceAreLeftOut) {
  v1::UpdateHeader other = Header();
  other.mutable_request()->set_request_id("b");
  other.mutable_request()->set_wait_ms(5);
  other.mutable_request()->set_expected_lineage("a-1");
  other.set_trace_step(0);
  EXPECT_EQ(DigestOf(other, {}), DigestOf(Header(), {}));
  other.clear_request();
  EXPECT_EQ(DigestOf(other, {}), DigestOf(Header(), {}));
}

TEST(PayloadDigestTest, EveryOtherDifferenceShows) {
  std::set<std::string> digests;
  const auto add = [&](const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups) {
    EXPECT_TRUE(digests.insert(DigestOf(header, groups)).second) << "variant " << digests.size();
  };
  add(Header(), {Group("a", 2), Group("b", 1)});
  add(Header(), {Group("b", 1), Group("a", 2)});
  add(Header(), {Group("a", 2)});
  v1::UpdateHeader header = Header();
  header.mutable_request()->set_expected_step(0);
  add(header, {Group("a", 2)});
  header = Header();
  header.mutable_loss()->set_entropy_coeff(0);  // present and zero is not absent
  add(header, {Group("a", 2)});
  header = Header();
  header.mutable_adam()->set_learning_rate(std::nextafter(1e-6, 1));
  add(header, {Group("a", 2)});
  header = Header();
  header.mutable_old()->set_from(v1::LogProbSource::CLIENT);
  add(header, {Group("a", 2)});
  v1::PromptGroup group = Group("a", 2);
  group.set_stat_group("");
  add(Header(), {group});
  group = Group("a", 2);
  group.mutable_rollouts(1)->set_reward(0);
  add(Header(), {group});
  group = Group("a", 2);
  group.mutable_rollouts()->SwapElements(0, 1);
  add(Header(), {group});
  group = Group("a", 2);
  group.mutable_rollouts(0)->set_rollout_log_probs(PackArray(std::vector<float>{1}));
  add(Header(), {group});
  group.mutable_rollouts(0)->clear_rollout_log_probs();
  group.mutable_rollouts(0)->set_old_log_probs(PackArray(std::vector<float>{1}));
  add(Header(), {group});
}

}  // namespace
}  // namespace stemma
