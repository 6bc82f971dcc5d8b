// What the reader asks a file for: parts of bounded size, run by run, and nothing beside them.
#include "worker/model/tensor_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/testing/namespaces.h"
#include "tests/testing/status_matchers.h"

namespace stemma::testing {
namespace {

constexpr int64_t kPartBytesMax = int64_t{64} << 20;

// A sparse file: zeros, but for the numbers that are set.
class TensorReaderTest : public ::testing::Test {
 protected:
  void Make(int64_t rows, int64_t columns) {
    entry_ = {"w", safetensors::Dtype::kF32, {rows, columns}, 16, 16 + static_cast<uint64_t>(4 * rows * columns)};
    ASSERT_THAT(WriteFile(path_, ""), IsOk());
    ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(entry_.end)), 0);
  }
  void Set(int64_t row, int64_t column, float value) const {
    FILE* file = fopen(path_.c_str(), "r+");
    ASSERT_NE(file, nullptr);
    fseek(file, static_cast<long>(entry_.begin) + 4 * (row * entry_.shape[1] + column), SEEK_SET);
    fwrite(&value, sizeof(value), 1, file);
    fclose(file);
  }
  // Returns the pieces of the box, all of whose elements are owned.
  std::vector<FilePiece> PiecesOf(const TensorBox& box) const {
    const HfTensor tensor = {"w", 0, 0, box.rows(), box};
    return FilePieces(tensor, entry_, {{0, 0, box.rows() * box.columns()}});
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "file";
  safetensors::TensorEntry entry_;
};

TEST_F(TensorReaderTest, ALargeTensorIsReadInParts) {
  constexpr int64_t kRows = 3000, kColumns = 16'384;  // 188 MiB, of which the box has two thirds
  Make(kRows, kColumns);
  const TensorBox boxes[] = {{0, kRows, 5000, 16'000}, {700, kRows, 0, kColumns}};
  for (const TensorBox& box : boxes) {
    const std::vector<FilePiece> pieces = PiecesOf(box);
    ASSERT_EQ(pieces.size(), 1u) << "a box is one piece";
    Set(box.row_begin, box.column_begin, 1);
    Set(box.row_end - 1, box.column_end - 1, 2);
    const auto file = RegularFile::Open(path_);
    ASSERT_THAT(file, IsOk());
    int64_t next = 0, parts = 0;
    double sum = 0, begin = 0, last = 0;
    const auto store = [&](int64_t first, const at::Tensor& values) {
      EXPECT_EQ(first, next);
      EXPECT_LE(values.nbytes(), static_cast<size_t>(kPartBytesMax));
      if (parts == 0) begin = values[0].item<float>();
      next += values.numel();
      sum += values.sum().item<double>();
      last = values[-1].item<float>();
      ++parts;
    };
    ASSERT_THAT(ReadTensor({path_, *file, entry_}, pieces[0], {}, store), IsOk());
    EXPECT_EQ(next, box.rows() * box.columns());
    EXPECT_EQ(begin, 1);
    EXPECT_EQ(last, 2);
    EXPECT_EQ(sum, 3);
    EXPECT_EQ(parts, (next * 4 + kPartBytesMax - 1) / kPartBytesMax);
    Set(box.row_begin, box.column_begin, 0);
    Set(box.row_end - 1, box.column_end - 1, 0);
  }
}

// The last part's element is named by its place in the tensor. What fp32 holds may be more than bf16 does.
TEST_F(TensorReaderTest, AnElementThatTheRunCannotHoldIsNamed) {
  constexpr int64_t kRows = 1100, kColumns = 16'384;  // two parts
  Make(kRows, kColumns);
  const auto file = RegularFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  const auto read = [&](at::ScalarType held) {
    return ReadTensor({path_, *file, entry_}, PiecesOf({0, kRows, 0, kColumns}).at(0), {.held = held},
                      [](int64_t, const at::Tensor&) {});
  };
  Set(kRows - 1, 7, 3.4e38F);
  EXPECT_THAT(read(at::kFloat), IsOk());
  EXPECT_THAT(read(at::kBFloat16), Invalid("[1099, 7] is 3.4e+38, which overflows"));
}

TEST_F(TensorReaderTest, AFileThatIsCutIsAnError) {
  Make(10, 8);
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(entry_.end) - 13), 0);
  const auto file = RegularFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  const auto read = [&](const TensorBox& box) {
    return ReadTensor({path_, *file, entry_}, PiecesOf(box).at(0), {}, [](int64_t, const at::Tensor&) {});
  };
  EXPECT_THAT(read({0, 10, 0, 4}), IsOk());
  EXPECT_THAT(read({0, 10, 4, 8}), Invalid("file"));
}

}  // namespace
}  // namespace stemma::testing
