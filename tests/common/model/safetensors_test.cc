#include "common/model/safetensors.h"

#include <cstring>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::safetensors {
namespace {

using testing::Invalid;
using testing::IsOk;
using testing::TempFolder;

std::string WithLength(const std::string& json, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

std::string File(const std::string& json, size_t data_bytes) {
  return WithLength(json, json.size()) + std::string(data_bytes, 'x');
}

// As from the network: only the length field and what it promises is handed over.
absl::StatusOr<Header> ParseWhole(const std::string& file) { return ParseHeader(file, file.size()); }

std::string Tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(SafetensorsTest, AWellFormedFileIsRead) {
  const auto header =
      ParseWhole(File(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )",
                      16));
  ASSERT_THAT(header, IsOk());
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].dtype, Dtype::kBF16);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].begin, 8 + header->raw.size() + 4);
  EXPECT_EQ(header->tensors[1].end, 8 + header->raw.size() + 16);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, EmptyTensorsRankZeroAndPaddingAreAccepted) {
  EXPECT_THAT(ParseWhole(File("{}", 0)), IsOk());
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[]", "[0,4]") + "     ", 4)), IsOk());
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[0,5]", "[0,0]"), 0)), IsOk());
  EXPECT_THAT(ParseWhole(File(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                              R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                              3)),
              IsOk());
}

TEST(SafetensorsTest, AFileBelowEightBytesIsRefused) {
  EXPECT_THAT(ParseWhole(""), Invalid("at least 8"));
  EXPECT_THAT(ParseWhole("1234567"), Invalid("7 bytes"));
}

TEST(SafetensorsTest, AHeaderLengthAboveTheLimitIsRefusedBeforeItIsRead) {
  EXPECT_THAT(ParseHeader(WithLength("{}", 100'000'001), uint64_t{1} << 40), Invalid("limit"));
  EXPECT_THAT(ParseHeader(WithLength("{}", UINT64_MAX), 1000), Invalid("limit"));
}

TEST(SafetensorsTest, AHeaderLengthBeyondTheFileIsRefused) {
  EXPECT_THAT(ParseWhole(WithLength("{}", 3)), Invalid("does not fit"));
}

TEST(SafetensorsTest, AHeaderThatIsNotJsonIsRefused) {
  EXPECT_THAT(ParseWhole(File("", 0)), Invalid("does not begin"));
  EXPECT_THAT(ParseWhole(File("[1]", 0)), Invalid("does not begin"));
  EXPECT_THAT(ParseWhole(File(" {}", 0)), Invalid("does not begin"));
  EXPECT_THAT(ParseWhole(File("{\"a\":", 0)), Invalid("not JSON"));
  EXPECT_THAT(ParseWhole(File("{} x", 0)), Invalid("not JSON"));
  EXPECT_THAT(ParseWhole(File(std::string("{}\0\0", 4), 0)), Invalid("not JSON"));
}

TEST(SafetensorsTest, AHeaderThatIsNotUtf8IsRefused) {
  EXPECT_THAT(ParseWhole(File("{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0)),
              Invalid("UTF-8"));
}

TEST(SafetensorsTest, ARepeatedKeyIsRefused) {
  EXPECT_THAT(ParseWhole(File(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                              R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                              0)),
              Invalid("appears twice"));
  EXPECT_THAT(ParseWhole(File(R"({"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0)),
              Invalid("appears twice"));
  EXPECT_THAT(ParseWhole(File(R"({"__metadata__":{},"__metadata__":{}})", 0)), Invalid("appears twice"));
}

TEST(SafetensorsTest, UnknownDtypesAndMissingFieldsAreRefused) {
  EXPECT_THAT(ParseWhole(File(Tensor("F33", "[1]", "[0,4]"), 4)), Invalid("dtype \"F33\" is unknown"));
  EXPECT_THAT(ParseWhole(File(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4)), Invalid("dtype is missing"));
  EXPECT_THAT(ParseWhole(File(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4)), Invalid("shape is missing"));
  EXPECT_THAT(ParseWhole(File(R"({"t":{"dtype":"F32","shape":[1]}})", 4)), Invalid("data_offsets is missing"));
  EXPECT_THAT(ParseWhole(File(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4)),
              Invalid("\"x\" is unknown"));
  EXPECT_THAT(ParseWhole(File(R"({"t":7})", 0)), Invalid("not an object"));
}

TEST(SafetensorsTest, OffsetsMustBePlainUnsignedIntegers) {
  for (const char* offsets : {"[0.0,4]", "[-1,3]", "[0,4e0]", "[\"0\",4]", "[0]", "[0,4,8]", "4",
                              "[0,18446744073709551616]", "[true,4]", "[-0,4]"}) {
    EXPECT_THAT(ParseWhole(File(Tensor("F32", "[1]", offsets), 4)), Invalid("data_offsets")) << offsets;
  }
}

TEST(SafetensorsTest, ShapesMustBePlainUnsignedIntegers) {
  for (const char* shape : {"[1.0]", "[-1]", "[\"1\"]", "[null]", "[9223372036854775808]", "1", "{}"}) {
    EXPECT_THAT(ParseWhole(File(Tensor("F32", shape, "[0,4]"), 4)), Invalid("shape")) << shape;
  }
}

TEST(SafetensorsTest, AShapeWhoseBytesOverflowIsRefused) {
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[4611686018427387904]", "[0,0]"), 0)), Invalid("overflows"));
  EXPECT_THAT(ParseWhole(File(Tensor("U8", "[4294967296,4294967296]", "[0,0]"), 0)), Invalid("overflows"));
}

TEST(SafetensorsTest, OffsetsMustFitShapeAndDtype) {
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[2]", "[0,4]"), 4)), Invalid("its shape and dtype 8"));
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[1]", "[4,0]"), 4)), Invalid("before begin"));
}

TEST(SafetensorsTest, HolesAndOverlapsAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_THAT(ParseWhole(File(two("[0,4]", "[4,8]"), 8)), IsOk());
  EXPECT_THAT(ParseWhole(File(two("[0,4]", "[5,9]"), 9)), Invalid("hole"));
  EXPECT_THAT(ParseWhole(File(two("[0,4]", "[3,7]"), 7)), Invalid("overlap"));
  EXPECT_THAT(ParseWhole(File(two("[0,4]", "[0,4]"), 4)), Invalid("overlap"));
  EXPECT_THAT(ParseWhole(File(Tensor("U8", "[4]", "[1,5]"), 5)), Invalid("hole"));
}

TEST(SafetensorsTest, TrailingAndMissingDataAreRefused) {
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[1]", "[0,4]"), 5)), Invalid("trailing data"));
  EXPECT_THAT(ParseWhole(File(Tensor("F32", "[1]", "[0,4]"), 3)), Invalid("truncated"));
  EXPECT_THAT(ParseWhole(File("{}", 1)), Invalid("trailing data"));
}

TEST(SafetensorsTest, MetadataMustBeStrings) {
  EXPECT_THAT(ParseWhole(File(R"({"__metadata__":{"n":1}})", 0)), Invalid("not a string"));
  EXPECT_THAT(ParseWhole(File(R"({"__metadata__":"x"})", 0)), Invalid("__metadata__"));
}

TEST(SafetensorsTest, DeepJsonIsRefused) {
  EXPECT_THAT(ParseWhole(File(R"({"t":)" + std::string(100000, '['), 0)), Invalid("nested deeper"));
}

TEST(SafetensorsTest, ManyDimensionsAreRefused) {
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_THAT(ParseWhole(File(Tensor("U8", shape + "]", "[0,1]"), 1)), Invalid("65 dimensions"));
  shape.resize(shape.size() - 2);
  EXPECT_THAT(ParseWhole(File(Tensor("U8", shape + "]", "[0,1]"), 1)), IsOk()) << "64 dimensions";
}

TEST(SafetensorsTest, MakeHeaderReadsBackAndAlignsData) {
  std::vector<TensorEntry> tensors = {{.name = "a\"b", .dtype = Dtype::kF16, .shape = {3}},
                                      {.name = "c", .dtype = Dtype::kF64, .shape = {}}};
  const std::string bytes = MakeHeader(tensors, {{"format", "pt"}});
  EXPECT_EQ(bytes.size() % 8, 0u);
  const auto header = ParseWhole(bytes + std::string(14, '\0'));
  ASSERT_THAT(header, IsOk());
  ASSERT_EQ(header->tensors.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(header->tensors[i].name, tensors[i].name);
    EXPECT_EQ(header->tensors[i].begin, tensors[i].begin);
    EXPECT_EQ(header->tensors[i].end, tensors[i].end);
  }
}

TEST(SafetensorsTest, ReadHeaderNamesTheFileAndReadsRegularFilesOnly) {
  const TempFolder folder;
  std::ofstream(folder / "bad.safetensors") << "abc";
  EXPECT_THAT(ReadHeader(folder / "bad.safetensors"), Invalid("bad.safetensors: the file has 3 bytes"));
  EXPECT_THAT(ReadHeader(folder.path()), Invalid("not a regular file"));
  std::filesystem::create_symlink("bad.safetensors", folder / "link");
  EXPECT_THAT(ReadHeader(folder / "link"), Invalid("it is a link"));
  EXPECT_EQ(ReadHeader(folder / "none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace stemma::safetensors
