// What SQLite answers becomes an error that names the file and says what to do.
#include "server/store/database.h"

#include "common/base/error.h"
#include "tests/server/store/store_files.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using testing::TempFolder;

TEST(DatabaseTest, AFullDatabaseIsAFullDisk) {
  const TempFolder folder;
  SetBytes(folder / "a.db", "");
  absl::StatusOr<Database> database = Database::Open(folder / "a.db");
  ASSERT_THAT(database, IsOk());
  ASSERT_THAT(database->Execute("CREATE TABLE t(body BLOB)"), IsOk());
  ASSERT_THAT(database->Integer("PRAGMA max_page_count=3"), IsOk());
  const absl::Status status = database->Execute("INSERT INTO t VALUES(zeroblob(100000))");
  EXPECT_EQ(ErrorReason(status), "DISK_FULL") << status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a.db: No space left")));
}

TEST(DatabaseTest, AFileThatIsNoDatabaseIsDamaged) {
  const TempFolder folder;
  SetBytes(folder / "a.db", std::string(5000, 'x'));
  const absl::Status status = Database::Open(folder / "a.db").status();
  EXPECT_EQ(ErrorReason(status), "CORRUPT_JOURNAL") << status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a.db")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("restore the folder from a backup"));
}

TEST(DatabaseTest, AMissingFileIsNotCreated) {
  const TempFolder folder;
  EXPECT_THAT(Database::Open(folder / "a.db"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("a.db")));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.db"));
}

}  // namespace
}  // namespace stemma::server
