// A manifest's text gives back what was written, and anything else is an error.
#include "server/store/checkpoint_manifest.h"

#include "google/protobuf/stubs/logging.h"
#include "server/store/checkpoint_parts.h"
#include "tests/server/store/checkpoint_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using internal::v1::CheckpointManifest;
using testing::Invalid;
using testing::IsOk;

CheckpointManifest DrawnManifest(uint64_t seed) {
  CheckpointManifest manifest = MakeSave("name-" + std::to_string(seed), seed, seed * 1000).manifest;
  SplitMix64 random(seed);
  manifest.set_version(kManifestVersion);
  manifest.set_journal_row(random.Next());
  manifest.set_saved_at_s(static_cast<double>(random.Next()) / 1e9);
  manifest.set_pinned(seed % 2 == 0);
  manifest.mutable_config()->set_memory_budget_bytes(random.Next());
  manifest.mutable_parts(0)->mutable_ranges(1)->set_begin(random.Next());
  return manifest;
}

const std::string kNoDigits(64, '0');

// An object with these fields before a right seal.
std::string SealedObject(const std::string& fields) {
  return Sealed("{" + fields + ",\"seal\":\"" + kNoDigits + "\"}");
}

TEST(CheckpointManifestTest, ItComesBackAsItWasAndNamesItsFields) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const CheckpointManifest manifest = DrawnManifest(seed);
    const absl::StatusOr<std::string> text = EncodeManifest(manifest);
    ASSERT_THAT(text, IsOk());
    const absl::StatusOr<CheckpointManifest> read = DecodeManifest(*text);
    ASSERT_THAT(read, IsOk()) << "seed " << seed;
    EXPECT_EQ(read->SerializeAsString(), manifest.SerializeAsString()) << "seed " << seed;
    EXPECT_NE(text->find("\"weight_version\":\""), std::string::npos) << *text;
  }
}

TEST(CheckpointPartsTest, EightWritersOfAFileAreNamedAndTheOthersCounted) {
  CheckpointManifest manifest;
  const auto problem = [&manifest](uint32_t ranks) {
    manifest.clear_parts();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      internal::v1::CheckpointPart& part = *manifest.add_parts();
      part.set_file("model.safetensors");
      part.set_rank(rank);
      part.set_sha256(kNoDigits);
      part.add_ranges()->set_begin(rank);
      part.mutable_ranges(0)->set_bytes(1);
    }
    const absl::StatusOr<FilesOfParts> files = ArrangeParts(manifest.parts());
    return files.ok() ? CheckFiles(*files, manifest.parts(), {}, Extras::kRefused) : files.status();
  };
  EXPECT_THAT(problem(1), Invalid("were written by rank 0"));
  EXPECT_THAT(problem(8), Invalid("were written by ranks 0, 1, 2, 3, 4, 5, 6, 7"));
  EXPECT_THAT(problem(9), Invalid("were written by ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"));
}

TEST(CheckpointManifestTest, TheSealIsTheDigestOfTheTextWithZerosInItsPlace) {
  const std::string text = *EncodeManifest(DrawnManifest(3));
  const size_t digits = text.find("\"seal\":\"") + 8;
  ASSERT_LT(digits + 64, text.size());
  std::string zeros = text;
  zeros.replace(digits, 64, kNoDigits);
  EXPECT_EQ(text.substr(digits, 64), DigestOfBytes(zeros));
  EXPECT_EQ(Sealed(zeros), text);
  CheckpointManifest twice = DrawnManifest(3);
  twice.set_seal(std::string(64, 'f'));
  EXPECT_EQ(*EncodeManifest(twice), text) << "a seal that it had does not matter";
}

TEST(CheckpointManifestTest, EveryFlippedBitIsRefused) {
  const google::protobuf::LogSilencer silent;
  const std::string text = *EncodeManifest(DrawnManifest(5));
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(DecodeManifest(damaged).ok()) << "bit " << bit;
  }
  EXPECT_THAT(DecodeManifest(text), IsOk()) << "control";
}

TEST(CheckpointManifestTest, ATextWithoutOneRightSealIsRefused) {
  const std::string digits = std::string(64, '1'), key = "\"seal\":\"";
  EXPECT_THAT(DecodeManifest(R"({"version":2})"), Invalid("has no seal of 64 digits, or more than one"));
  EXPECT_THAT(DecodeManifest(R"({"version":2,"seal":""})"), Invalid("has no seal"));
  EXPECT_THAT(DecodeManifest(R"({"version":2,"seal":7})"), Invalid("has no seal"));
  EXPECT_THAT(DecodeManifest("{\"version\":2," + key + digits + "1\"}"), Invalid("has no seal"));
  EXPECT_THAT(DecodeManifest("{\"version\":2," + key + digits + "\"}"), Invalid("has changed since it was sealed"));
  EXPECT_THAT(DecodeManifest(SealedObject("\"version\":2,\"config\":{" + key + digits + "\"}")),
              Invalid("has no seal"));
  EXPECT_EQ(Sealed("no place for it"), "no place for it");
  CheckpointManifest named = DrawnManifest(1);
  named.set_lineage(key + digits + "\"");
  ASSERT_THAT(DecodeManifest(*EncodeManifest(named)), IsOk()) << "a name that looks like one";
}

TEST(CheckpointManifestTest, AnotherVersionOrFieldIsRefusedWithWhatToDo) {
  EXPECT_THAT(DecodeManifest("{}"), Invalid("has no version"));
  EXPECT_THAT(DecodeManifest("[]"), Invalid("is a list where an object is expected"));
  for (const char* version : {"0", "1", "3", "-1", "1.5", "\"2\"", "null", "{}", "99999999999999999999"}) {
    EXPECT_FALSE(DecodeManifest(SealedObject(std::string("\"version\":") + version)).ok()) << version;
  }
  EXPECT_THAT(DecodeManifest(R"({"version":1,"step":"1"})").status(),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr("has the version 1")))
      << "the first had no seal";
  EXPECT_THAT(DecodeManifest(R"({"version":1,"seal":""})"), Invalid("has the version 1"));
  EXPECT_THAT(DecodeManifest(R"({"version":3,"later":[]})"), Invalid("this program reads 2: use the program"));
  for (const char* later :
       {R"("later":[])", R"("config":{"later":1})"}) {  // its seal is right: a newer version wrote it
    EXPECT_THAT(DecodeManifest(SealedObject(std::string(R"("version":2,)") + later)).status(),
                testing::StatusIs(
                    absl::StatusCode::kFailedPrecondition,
                    ::testing::AllOf(::testing::HasSubstr("another version of Stemma"), ::testing::HasSubstr("later"),
                                     ::testing::HasSubstr("use the program that wrote it"))));
  }
  EXPECT_THAT(DecodeManifest(SealedObject(R"("version":2)")), IsOk()) << "control";
}

TEST(CheckpointManifestTest, WhatIsNoJsonOrRepeatsAKeyIsRefused) {
  for (const std::string& text :
       {std::string(), std::string(" "), std::string("{"), SealedObject(R"("version":2,)"), SealedObject("version:2"),
        SealedObject("'version':2"), SealedObject(R"("version":2)") + " x",
        SealedObject(R"("version":2,"step":"1","step":"2")"),
        SealedObject(R"("version":2,"step":"18446744073709551616")"), SealedObject(R"("version":2,"step":-1)"),
        SealedObject(R"("version":2,"step":1.5)"), SealedObject(R"("version":2,"step":1e400)"),
        SealedObject(R"("version":2,"parts":1)"), SealedObject(R"("version":2,"name":7)"),
        SealedObject("\"version\":2,\"name\":\"\xff\""),
        SealedObject(R"("version":2,"parts":[{"rank":4294967296}])")}) {
    EXPECT_EQ(DecodeManifest(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  for (const int depth : {10, 40, 10000, 1000000}) {
    std::string deep = R"("version":2,"config":)";
    for (int i = 0; i < depth; ++i) deep += R"({"limits":)";
    if (depth == 10) deep += "1" + std::string(10, '}');
    EXPECT_FALSE(DecodeManifest(SealedObject(deep)).ok()) << depth;
  }
}

// Whatever bytes change before it is sealed, it is an error or a manifest, and the program lives.
TEST(CheckpointManifestTest, DamagedTextsEndInAnAnswer) {
  const google::protobuf::LogSilencer silent;
  const std::string text = *EncodeManifest(DrawnManifest(7));
  int refused = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SplitMix64 random(seed);
    std::string damaged = text;
    for (uint64_t i = random.Next() % 8 + 1; i > 0; --i) {
      const size_t at = random.Next() % damaged.size();
      switch (random.Next() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random.Next());
          break;
        case 1:
          damaged.erase(at, random.Next() % 20);
          break;
        default:
          damaged.insert(at, text.substr(random.Next() % text.size(), random.Next() % 40));
      }
    }
    const absl::StatusOr<CheckpointManifest> read = DecodeManifest(Sealed(damaged));
    if (read.ok()) {
      ArrangeParts(read->parts()).IgnoreError();
    } else {
      ++refused;
      const bool has_other_fields = absl::IsFailedPrecondition(read.status());
      EXPECT_TRUE(has_other_fields || absl::IsInvalidArgument(read.status())) << "seed " << seed;
    }
    EXPECT_FALSE(DecodeManifest(DrawnContent(seed, 200)).ok()) << "seed " << seed;
  }
  EXPECT_GT(refused, 1500);
  EXPECT_LT(refused, 3000) << "the seal hides nothing else here";
}

}  // namespace
}  // namespace stemma::server
