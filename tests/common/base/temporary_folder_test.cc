// Folders that others may read and nobody else may write, whatever the umask allows.
#include "common/base/temporary_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::TempFolder;

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(umask(mask)) {}
  ~Umask() { umask(before_); }

 private:
  const mode_t before_;
};

TEST(TemporaryFolderTest, FoldersAreForTheirUserToWrite) {
  const TempFolder root;
  const Umask none(0);
  EXPECT_EQ(MakeFolders(root / "a/b/c/"), 0);
  EXPECT_EQ(MakeFolders(root / "a/b"), 0) << "they are there";
  for (const char* made : {"a", "a/b", "a/b/c"}) EXPECT_EQ(ModeOf(root / made), 0755u) << made;
  EXPECT_THAT(TemporaryFolder::Create(root / "exports/e").status(), testing::IsOk());
  EXPECT_EQ(ModeOf(root / "exports"), 0755u);
  const Umask private_mask(077);
  EXPECT_EQ(MakeFolders(root / "p"), 0);
  EXPECT_EQ(ModeOf(root / "p"), 0700u);
}

TEST(TemporaryFolderTest, AFileInTheWayIsSaid) {
  const TempFolder root;
  std::ofstream(root / "file") << "x";
  EXPECT_EQ(MakeFolders(root / "file/a"), ENOTDIR);
  EXPECT_EQ(TemporaryFolder::Create(root / "file/a/b").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace stemma
