// Parts and rows that go wrong: each says why, and the next one is tried.
#include "tests/gpu/bench/bench_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>

#include "common/base/file.h"
#include "tests/gpu/bench/length_search.h"
#include "tests/gpu/bench/parts.h"
#include "tests/testing/status_matchers.h"
#include "worker/engine/open_device.h"

namespace stemma::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// The CPU, whose backend makes tensors on a device that is not there: as one whose memory cannot be had any more.
class BrokenDevice final : public worker::Device {
 public:
  worker::DeviceIdentity identity() const override { return cpu_->identity(); }
  worker::DeviceMemory memory() const override { return cpu_->memory(); }
  worker::Backend MakeBackend(const worker::BackendRequest& request) const override {
    worker::Backend backend = cpu_->MakeBackend(request);
    backend.device = at::Device(at::kCUDA, 63);
    return backend;
  }
  absl::StatusOr<std::shared_ptr<const worker::Transport>> MakeTransport() const override {
    return cpu_->MakeTransport();
  }

 private:
  const std::unique_ptr<worker::Device> cpu_ = *worker::OpenDevice({"cpu"});
};

class BenchRunTest : public ::testing::Test {
 protected:
  BenchRun Make(std::unique_ptr<worker::Device> device, BenchOptions options = {}) const {
    options.tiny = true;
    return BenchRun(options, std::move(device), *ReportFile::Open(path_));
  }
  json Part(const std::string& name) const { return json::parse(*ReadFile(path_, 1 << 22))["parts"][name]; }

  const TempFolder folder_;
  const std::string path_ = folder_ / "report.json";
};

TEST_F(BenchRunTest, APartThatThrowsHasFailedAndSaysWhy) {
  BenchRun run = Make(*worker::OpenDevice({"cpu"}));
  const absl::Status status =
      run.RunPart("rates", [](BenchRun&) -> absl::Status { throw std::runtime_error("no context"); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("no context"));
  EXPECT_THAT(Part("rates")["state"].get<std::string>(), HasSubstr("failed: no context"));
  EXPECT_THAT(run.RunPart("dense", [](BenchRun&) { return absl::OkStatus(); }), IsOk());
  EXPECT_EQ(Part("dense")["state"], "done");
  EXPECT_EQ(Part("dense")["device"], "cpu");
  EXPECT_EQ(Part("dense")["date"], Today());
}

TEST_F(BenchRunTest, OperandsThatCannotBeMadeAreTheReasonOfTheirRowAlone) {
  BenchRun run = Make(std::make_unique<BrokenDevice>());
  EXPECT_THAT(run.RunPart("kernels", RunKernels), IsOk());
  EXPECT_THAT(run.RunPart("rates", RunRates), IsOk());
  EXPECT_EQ(Part("kernels")["tables"]["kernels"].size(), 18u);
  EXPECT_EQ(Part("rates")["tables"]["copies"].size(), 4u);
  for (const char* part : {"kernels", "rates"}) {
    for (const auto& [table, rows] : Part(part)["tables"].items()) {
      for (const json& row : rows) {
        const std::string why = row.value("not_measured", "");
        EXPECT_THAT(why, HasSubstr("CUDA")) << row;
        EXPECT_LE(why.size(), 200u);
        EXPECT_EQ(why.find('\n'), std::string::npos) << "a row of a table has one line";
      }
    }
  }
}

TEST_F(BenchRunTest, APartSaysWhetherTimeOrAWishLeftRowsOut) {
  const auto part = [](BenchRun& run) {
    for (const char* name : {"a", "b"}) {
      run.Row("rows", {{"name", name}}, [](json& row) {
        row["number"] = 1;
        return absl::OkStatus();
      });
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(Make(*worker::OpenDevice({"cpu"}), {.seconds = -1}).RunPart("rates", part), IsOk());
  EXPECT_EQ(Part("rates")["state"], "out of time");
  EXPECT_THAT(Make(*worker::OpenDevice({"cpu"}), {.rows = "\"b\""}).RunPart("rates", part), IsOk());
  EXPECT_EQ(Part("rates")["state"], "not all rows were asked for");
  EXPECT_EQ(Part("rates")["tables"]["rows"][1]["number"], 1);
  EXPECT_THAT(Make(*worker::OpenDevice({"cpu"})).RunPart("rates", part), IsOk());
  EXPECT_EQ(Part("rates")["state"], "done");
}

TEST_F(BenchRunTest, APartWithABoundOnlyIsOutOfTime) {
  BenchRun run = Make(*worker::OpenDevice({"cpu"}));
  const auto part = [](BenchRun& of_run) {
    of_run.Row("rows", {{"way", "a"}}, [](json& row) {
      LengthSearch(8).Write(64, row);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  EXPECT_THAT(run.RunPart("capacity", part), IsOk());
  EXPECT_EQ(Part("capacity")["state"], "out of time");
}

// Tries lengths until `tries` are told or the search is over.
json Found(int64_t most, int64_t longest, int tries) {
  LengthSearch search(most);
  for (int i = 0; i < tries && !search.is_over(); ++i) search.Tell(search.next() <= longest);
  json row;
  search.Write(64, row);
  return row;
}

TEST(LengthSearchTest, TheLongestIsFound) {
  for (const int64_t most : {1, 8, 100}) {
    for (int64_t longest = 0; longest <= most; ++longest) {
      const json row = Found(most, longest, 100);
      EXPECT_EQ(row["tokens"], 64 * longest);
      EXPECT_EQ(row["is_the_positions"], longest == most);
      EXPECT_FALSE(row.contains("cut"));
    }
  }
}

TEST(LengthSearchTest, ASearchThatIsCutBoundsOrShowsNothing) {
  EXPECT_EQ(Found(100, 50, 0)["not_measured"], "out of time");
  EXPECT_EQ(Found(100, 5, 1)["not_measured"], "out of time") << "8 did not run, and fewer were not tried";
  const json bound = Found(100, 50, 2);
  EXPECT_EQ(bound["tokens"], 64 * 16);
  EXPECT_EQ(bound["cut"], true);
  EXPECT_FALSE(bound.contains("not_measured"));
}

// Where its memory ends a device's libraries may fail without saying that memory was short.
TEST(LengthSearchTest, AnErrorLeavesWhatRanBeforeItAsABound) {
  const auto row_of = [](int64_t fails_from, json& row) {
    const auto runs = [&](int64_t tokens) -> absl::StatusOr<bool> {
      if (tokens >= fails_from) return absl::InternalError("cuBLAS failed\nin a kernel");
      return true;
    };
    return FindLongest(
        LengthSearch(100), 64, runs, [] { return false; }, row);
  };
  json bound, none;
  EXPECT_THAT(row_of(2048, bound), IsOk());
  EXPECT_EQ(bound, (json{{"step", 64}, {"tokens", 1024}, {"is_the_positions", false}, {"ended_by", "cuBLAS failed"}}));
  EXPECT_EQ(row_of(64, none).code(), absl::StatusCode::kInternal);
}

TEST(LengthSearchTest, LengthsAreTriedUntilTimeIsUp) {
  json row;
  const auto runs = [](int64_t tokens) -> absl::StatusOr<bool> { return tokens <= 64 * 50; };
  EXPECT_THAT(FindLongest(
                  LengthSearch(100), 64, runs, [] { return false; }, row),
              IsOk());
  EXPECT_EQ(row, (json{{"step", 64}, {"tokens", 64 * 50}, {"is_the_positions", false}}));
  int tries = 0;
  EXPECT_THAT(FindLongest(
                  LengthSearch(100), 64, runs, [&] { return tries++ == 2; }, row = {}),
              IsOk());
  EXPECT_EQ(row, (json{{"step", 64}, {"cut", true}, {"tokens", 64 * 16}, {"is_the_positions", false}}));
}

}  // namespace
}  // namespace stemma::testing
