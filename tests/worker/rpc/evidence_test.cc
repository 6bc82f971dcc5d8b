// What a rank leaves of a generation that ended, and how much of it stays.
#include "worker/rpc/evidence.h"

#include <filesystem>

#include "common/base/file.h"
#include "common/base/incidents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::worker {
namespace {

namespace fs = std::filesystem;

internal::v1::Configure Generation(const std::string& data_directory, uint64_t generation, uint32_t rank) {
  internal::v1::Configure configure;
  configure.set_data_directory(data_directory);
  configure.set_epoch(1);
  configure.set_generation(generation);
  configure.set_rank(rank);
  return configure;
}

size_t NumIncidents(const std::string& data_directory) {
  const fs::directory_iterator folders(data_directory + "/incidents");
  return static_cast<size_t>(std::distance(fs::begin(folders), fs::end(folders)));
}

// A load of a checkpoint ends a generation, too, of which the server keeps nothing; nor does one that is killed.
TEST(EvidenceTest, TheNewestStayThoughNoServerSawTheEnd) {
  const testing::TempFolder data;
  for (uint64_t generation = 1; generation <= kIncidentsMax + 7; ++generation) {
    for (const uint32_t rank : {1u, 0u}) {
      LeaveEvidence(Generation(data.path(), generation, rank), {.engine = absl::OkStatus(), .last = {}, .stack = ""});
    }
  }
  EXPECT_EQ(NumIncidents(data.path()), kIncidentsMax);
  EXPECT_FALSE(fs::exists(data / "incidents/000001-0007"));
  const auto text = ReadFile(data / "incidents/000001-0027/rank-1.txt", 1 << 20);
  ASSERT_THAT(text, testing::IsOk());
  EXPECT_THAT(*text, ::testing::HasSubstr("a checkpoint is loaded"));
}

}  // namespace
}  // namespace stemma::worker
