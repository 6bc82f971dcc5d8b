// What the server's start makes of rows whose chain is whole: it goes on from them, or says which of them makes no
// sense.
#include "server/coordinator/storage.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using internal::v1::JournalRow;
using testing::IsOk;
using testing::TempFolder;

constexpr uint64_t kRequestsKept = 4;

JournalRow Started(uint64_t epoch) {
  JournalRow row;
  row.mutable_started()->set_epoch(epoch);
  return row;
}

absl::StatusOr<std::unique_ptr<Storage>> OpenWith(const std::string& folder, const std::vector<std::string>& bodies) {
  {
    absl::StatusOr<Journal> journal = Journal::Open(folder);
    EXPECT_THAT(journal, IsOk());
    for (const std::string& body : bodies) {
      EXPECT_THAT(journal->Append(journal->last_n() + 1, body, /*settles=*/true), IsOk());
    }
  }
  return Storage::Open(folder, kRequestsKept);
}

TEST(StorageTest, RowsAreFolded) {
  const TempFolder folder;
  const auto storage = OpenWith(folder.path(), {Started(1).SerializeAsString(), Started(2).SerializeAsString()});
  ASSERT_THAT(storage, IsOk());
  EXPECT_EQ((*storage)->state().epoch(), 2u);
  EXPECT_EQ((*storage)->last_row(), 2u);
}

TEST(StorageTest, RowsThatMakeNoSenseAreRefused) {
  JournalRow nameless;
  nameless.mutable_snapshot()->add_requests();
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{Started(1).SerializeAsString(), "\xff\xff"}, "row 2"},
      {{Started(2).SerializeAsString(), Started(1).SerializeAsString()}, "epoch 1 follows 2"},
      {{Started(UINT64_MAX).SerializeAsString()}, "makes no sense"},
      {{nameless.SerializeAsString()}, "makes no sense"},
  };
  for (const auto& [bodies, what] : cases) {
    const TempFolder folder;
    const absl::Status status = OpenWith(folder.path(), bodies).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << what << ": " << status;
  }
}

}  // namespace
}  // namespace stemma::server
