#include "tests/worker/parallel/rank_program.h"

#include <ATen/ATen.h>

#include <array>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"

namespace stemma::testing {
namespace {

using worker::Communicator;
using worker::PendingCollective;

constexpr int64_t kSeveralPieces = 70'001;  // more than a CPU adds at a time to a sum of another dtype

class RankProgram {
 public:
  RankProgram(Communicator& ranks, uint64_t seed, at::Device device, int64_t count_max = 5000)
      : ranks_(ranks), seed_(seed), device_(device), count_max_(count_max), sizes_(seed) {}

  ProgramResult Run() {
    for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, DrawCount(7), DrawCount(count_max_), DrawCount(count_max_)}) {
        AllReduce(type, count);
        ReduceScatter(type, count, /*in_place=*/false);
        ReduceScatter(type, count, /*in_place=*/true);
      }
      Overlapped(type);
    }
    for (const int64_t count : {int64_t{0}, int64_t{1}, DrawCount(count_max_), kSeveralPieces}) {
      ReduceScatterOfNarrow(count);
    }
    for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16, at::kByte}) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, DrawCount(7), DrawCount(count_max_)}) {
        AllGather(type, count, /*in_place=*/false);
        AllGather(type, count, /*in_place=*/true);
        for (int root = 0; root < ranks_.size(); ++root) Broadcast(type, count, root);
        PassAround(type, count);
      }
    }
    Agree();
    return End();
  }

  ProgramResult RunMessages() {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kByte}) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, DrawCount(count_max_)}) PassAround(type, count);
    }
    return End();
  }

 private:
  ProgramResult End() {
    result_.common_digest = common_.FinishHex();
    result_.own_digest = own_.FinishHex();
    return std::move(result_);
  }

  int64_t DrawCount(int64_t max) { return std::uniform_int_distribution<int64_t>(2, max)(sizes_); }

  // What rank `rank` brings to the `draw`-th collective: every rank can compute that of the others.
  at::Tensor Values(int rank, at::ScalarType type, int64_t count, uint64_t draw) const {
    std::seed_seq seeds{seed_, draw, static_cast<uint64_t>(rank)};
    std::mt19937_64 random(seeds);
    at::Tensor values = at::empty({count}, at::kDouble);
    std::normal_distribution<double> normal;
    std::uniform_int_distribution<int> whole(0, 255);
    const bool integral = at::isIntegralType(type, /*includeBool=*/true);
    for (int64_t i = 0; i < count; ++i) values.data_ptr<double>()[i] = integral ? whole(random) : normal(random);
    return values.to(type).to(device_);
  }

  at::Tensor Full(int64_t count, double value, at::ScalarType type) const {
    return at::full({count}, value, at::TensorOptions().dtype(type).device(device_));
  }

  // The float64 sum of the ranks' values.
  at::Tensor Sum(at::ScalarType type, int64_t count, uint64_t draw) const {
    at::Tensor sum = at::zeros({count}, at::kDouble);
    for (int rank = 0; rank < ranks_.size(); ++rank) sum += Values(rank, type, count, draw).cpu().to(at::kDouble);
    return sum;
  }

  void AllReduce(at::ScalarType type, int64_t count) {
    const uint64_t draw = ++draws_;
    at::Tensor values = Values(ranks_.rank(), type, count, draw);
    Expect(ranks_.AllReduceSum("all_reduce", values), "all-reduce");
    ExpectSum(values, Sum(type, count, draw), "all-reduce");
    Add(common_, values);
  }

  void ReduceScatter(at::ScalarType type, int64_t part, bool in_place) {
    const uint64_t draw = ++draws_;
    at::Tensor input = Values(ranks_.rank(), type, part * ranks_.size(), draw);
    const at::Tensor before = input.clone();
    at::Tensor output = in_place ? input.narrow(0, ranks_.rank() * part, part) : Full(part, 77, type);
    Expect(ranks_.ReduceScatterSum("reduce_scatter", input, output), "reduce-scatter");
    if (!in_place && !input.equal(before)) Fail("reduce-scatter changed its input");
    ExpectSum(output, Sum(type, part * ranks_.size(), draw).narrow(0, ranks_.rank() * part, part), "reduce-scatter");
    Add(own_, output);
  }

  // Returns 1, 2, 3, 1, 2, ... from place `begin` on.
  at::Tensor Steps(int64_t begin, int64_t count) const {
    return (at::arange(begin, begin + count, at::kDouble).remainder(3) + 1).to(device_);
  }

  // bf16 of every rank, whose sum is fp32: 1 to 3 and so many 1/1024 of each rank are bf16, and their sum is not.
  void ReduceScatterOfNarrow(int64_t part) {
    const double of_rank = ranks_.rank() == 0 ? 1.0 : 1.0 / 1024, sum = 1 + (ranks_.size() - 1) / 1024.0;
    const at::Tensor input = (Steps(0, part * ranks_.size()) * of_rank).to(at::kBFloat16);
    at::Tensor output = Full(part, 77, at::kFloat);
    Expect(ranks_.ReduceScatterSum("reduce_scatter", input, output), "reduce-scatter of bf16");
    ExpectEqual(output, (Steps(ranks_.rank() * part, part) * sum).to(at::kFloat), "reduce-scatter of bf16");
    Add(own_, output);
  }

  // Whether all ranks have come is known without waiting for them.
  void AwaitDone(const PendingCollective& pending) {
    if (!result_.failures.empty()) return;
    const double deadline_s = RealClock().MonotonicSeconds() + 60;
    while (!pending.Done() && RealClock().MonotonicSeconds() < deadline_s) RealClock().Sleep(absl::Milliseconds(1));
    if (!pending.Done()) Fail("a collective in flight is never done");
  }

  // Several at once, waited for in another order than they were started in.
  void Overlapped(at::ScalarType type) {
    const int64_t part = 300;
    const uint64_t draw = draws_ += 4;
    const at::Tensor mine = Values(ranks_.rank(), type, part, draw);
    const at::Tensor first = Values(ranks_.rank(), type, part * ranks_.size(), draw - 1);
    const at::Tensor second = Values(ranks_.rank(), type, part * ranks_.size(), draw - 2);
    const at::Tensor more = Values(ranks_.rank(), type, part, draw - 3);
    const at::Tensor scratch = Full(part * ranks_.size(), 77, type);
    at::Tensor first_sum = Full(part, 0, type), second_sum = Full(part, 0, type);
    at::Tensor whole = Full(part * ranks_.size(), 0, type), more_whole = Full(part * ranks_.size(), 0, type);
    const auto scatter_first = ranks_.StartReduceScatterSum("first", first, first_sum, scratch);
    const auto gather = ranks_.StartAllGather("gather", mine, whole);
    const auto scatter_second = ranks_.StartReduceScatterSum("second", second, second_sum);
    const auto gather_more = ranks_.StartAllGather("more", more, more_whole);
    for (const auto* pending : {&gather_more, &scatter_second, &scatter_first, &gather}) {
      AwaitDone(**pending);
      Expect((*pending)->Wait(), "overlapped");
    }
    const auto own_part = [&](const at::Tensor& sum) { return sum.narrow(0, ranks_.rank() * part, part); };
    ExpectSum(first_sum, own_part(Sum(type, part * ranks_.size(), draw - 1)), "overlapped reduce-scatter");
    ExpectSum(second_sum, own_part(Sum(type, part * ranks_.size(), draw - 2)), "second overlapped reduce-scatter");
    ExpectEqual(whole, Gathered(type, part, draw), "overlapped all-gather");
    ExpectEqual(more_whole, Gathered(type, part, draw - 3), "second overlapped all-gather");
  }

  at::Tensor Gathered(at::ScalarType type, int64_t count, uint64_t draw) const {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks_.size(); ++rank) parts.push_back(Values(rank, type, count, draw));
    return at::cat(parts);
  }

  void AllGather(at::ScalarType type, int64_t count, bool in_place) {
    const uint64_t draw = ++draws_;
    at::Tensor output = Full(count * ranks_.size(), 77, type);
    at::Tensor input = Values(ranks_.rank(), type, count, draw);
    if (in_place) {
      at::Tensor mine = output.narrow(0, ranks_.rank() * count, count);
      mine.copy_(input);
      input = mine;
    }
    Expect(ranks_.AllGather("all_gather", input, output), "all-gather");
    ExpectEqual(output, Gathered(type, count, draw), "all-gather");
    Add(common_, output);
  }

  void Broadcast(at::ScalarType type, int64_t count, int root) {
    const uint64_t draw = ++draws_;
    at::Tensor values = Values(ranks_.rank(), type, count, draw);
    Expect(ranks_.Broadcast("broadcast", values, root), "broadcast");
    ExpectEqual(values, Values(root, type, count, draw), "broadcast");
    Add(common_, values);
  }

  // Round the ring and back to rank 0, each rank adding nothing.
  void PassAround(at::ScalarType type, int64_t count) {
    if (ranks_.size() == 1) return;
    const uint64_t draw = ++draws_;
    const int next = (ranks_.rank() + 1) % ranks_.size(),
              previous = (ranks_.rank() + ranks_.size() - 1) % ranks_.size();
    at::Tensor values = ranks_.rank() == 0 ? Values(0, type, count, draw) : Full(count, 77, type);
    if (ranks_.rank() == 0) {
      Expect(ranks_.Send("around", values, next), "send");
      values.fill_(78);
    }
    Expect(ranks_.Receive("around", values, previous), "receive");
    if (ranks_.rank() != 0) Expect(ranks_.Send("around", values, next), "send");
    ExpectEqual(values, Values(0, type, count, draw), "sent around");
    Add(common_, values);
  }

  void Agree() {
    std::array<int64_t, 3> words{ranks_.rank(), -ranks_.rank(), ranks_.rank() == 1 ? int64_t{1} << 60 : 0};
    Expect(ranks_.Agree("agree", words), "agreement");
    const std::array<int64_t, 3> expected{ranks_.size() - 1, 0, ranks_.size() > 1 ? int64_t{1} << 60 : 0};
    if (words != expected) Fail(absl::StrCat("agreement on ", words[0], " ", words[1], " ", words[2]));
  }

  void ExpectEqual(const at::Tensor& got, const at::Tensor& expected, const char* what) {
    if (!got.equal(expected)) Fail(absl::StrCat(what, " of ", got.numel(), " ", at::toString(got.scalar_type())));
  }

  // Rounding of size - 1 additions of numbers below 8: less than 4 * 3 * 8 half units in the last place of 8. Integers
  // are exact.
  void ExpectSum(const at::Tensor& got, const at::Tensor& expected, const char* what) {
    const double tolerance = got.scalar_type() == at::kFloat ? 1e-5 : got.scalar_type() == at::kDouble ? 1e-14 : 0;
    if (!at::allclose(got.cpu().to(at::kDouble), expected, /*rtol=*/0, tolerance)) {
      Fail(absl::StrCat(what, " of ", got.numel(), " ", at::toString(got.scalar_type())));
    }
  }

  void Expect(const absl::Status& status, const char* what) {
    if (!status.ok()) Fail(absl::StrCat(what, ": ", status.ToString()));
  }

  void Fail(const std::string& what) {
    result_.failures.push_back(
        absl::StrCat("rank ", ranks_.rank(), " of ", ranks_.size(), ", seed ", seed_, ": ", what));
  }

  static void Add(Sha256& digest, const at::Tensor& device_values) {
    const at::Tensor values = device_values.cpu();
    digest.Update({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }

  Communicator& ranks_;
  const uint64_t seed_;
  const at::Device device_;
  const int64_t count_max_;
  std::mt19937_64 sizes_;
  uint64_t draws_ = 0;
  Sha256 common_, own_;
  ProgramResult result_;
};

}  // namespace

ProgramResult RunRankProgram(worker::Communicator& ranks, uint64_t seed, at::Device device, int64_t count_max) {
  return RankProgram(ranks, seed, device, count_max).Run();
}

ProgramResult RunMessageProgram(worker::Communicator& ranks, uint64_t seed, at::Device device) {
  return RankProgram(ranks, seed, device).RunMessages();
}

}  // namespace stemma::testing
