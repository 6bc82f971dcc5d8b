// Least squares by hand; rates found again from what they made; recorded phases of a real machine, the tested shapes
// held out.
#include "server/planner/calibration.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/planner/least_squares.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {
namespace {

using testing::BenchModel;
using testing::BenchRates;
using testing::OneGroup;

TEST(LeastSquaresTest, AnExactSystemIsSolved) {
  const std::vector<double> x = NonNegativeLeastSquares({{{1, 2}, 8}, {{3, 1}, 9}, {{1, 0}, 2}}, 2, /*ridge=*/1e-12);
  EXPECT_NEAR(x[0], 2, 1e-6);
  EXPECT_NEAR(x[1], 3, 1e-6);
}

TEST(LeastSquaresTest, AnUnknownThatWouldBeNegativeIsZeroAndTheOthersAreFittedWithoutIt) {
  // Free: x = (3, -1). At x1 = 0: x0 = (2 + 2 + 3) / 3 over equations 1, 1, 1.
  const std::vector<double> x = NonNegativeLeastSquares({{{1, 1}, 2}, {{1, 1}, 2}, {{1, 0}, 3}}, 2, /*ridge=*/1e-12);
  EXPECT_NEAR(x[0], 7.0 / 3, 1e-6);
  EXPECT_NEAR(x[1], 0, 1e-9);
}

TEST(LeastSquaresTest, WhatNoEquationTellsApartStaysTogether) {
  const std::vector<double> x = NonNegativeLeastSquares({{{1, 1, 0}, 3}}, 3, /*ridge=*/1e-6);
  EXPECT_NEAR(x[0], 1.5, 1e-3);
  EXPECT_NEAR(x[1], 1.5, 1e-3);
  EXPECT_NEAR(x[2], 1, 1e-9);
}

TEST(LeastSquaresTest, OutliersMoveTheRobustFitLessThanThePlainOne) {
  std::vector<Equation> equations(20, Equation{{1}, 1});
  equations[3].value = equations[11].value = 10;
  EXPECT_GT(NonNegativeLeastSquares(equations, 1, 1e-9)[0], 1.8);
  EXPECT_LT(RobustLeastSquares(equations, 1, 1e-9, 0.1)[0], 1.02);
}

// A step of one group, as `rates` make it.
CalibrationSample Made(const ClusterShape& cluster, const Rates& rates, double factor = 1) {
  ByteShape shape;
  shape.config = BenchModel();
  const int64_t rows = PackedPrefixRows(cluster);
  CalibrationSample sample;
  sample.work = ClusterWork(shape, cluster, {.rows = rows}, v1::S0, 1);
  sample.seconds = Seconds(sample.work, rates);
  sample.seconds.prefix_forward *= factor;
  sample.seconds.suffix *= factor;
  sample.seconds.prefix_backward *= factor;
  sample.apply_s = Seconds(ApplyWork(shape.config), rates);
  return sample;
}

std::vector<ClusterShape> Shapes() {
  return {OneGroup(1023, 256, 8), OneGroup(2047, 128, 16),     OneGroup(63, 512, 4),  OneGroup(255, 255, 8),
          OneGroup(127, 64, 16),  OneGroup(1499, 100, 4),      OneGroup(799, 800, 2), OneGroup(299, 1000, 3),
          OneGroup(1023, 32, 32), OneGroup(600, 300, 4, false)};
}

TEST(CalibrationTest, RatesAreFoundAgainAndPredictOtherShapes) {
  const Rates truth = BenchRates();
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, truth));
  ASSERT_TRUE(calibration.rates().calibrated);
  for (const ClusterShape& cluster : {OneGroup(3000, 50, 3), OneGroup(20, 20, 20), OneGroup(511, 511, 5, false)}) {
    const CalibrationSample other = Made(cluster, truth);
    const PredictedSeconds predicted = Seconds(other.work, calibration.rates());
    EXPECT_NEAR(predicted.total() / other.seconds.total(), 1, 0.02);
    EXPECT_NEAR(predicted.suffix / other.seconds.suffix, 1, 0.02);
  }
  EXPECT_NEAR(calibration.rates()[kParameter] / truth[kParameter], 1, 1e-9);
}

TEST(CalibrationTest, ASlowStepAmongManyHardlyMatters) {
  const Rates truth = BenchRates();
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, truth));
  calibration.Add(Made(OneGroup(1023, 256, 8), truth, /*factor=*/20));
  const CalibrationSample other = Made(OneGroup(1000, 50, 3), truth);
  EXPECT_NEAR(Seconds(other.work, calibration.rates()).total() / other.seconds.total(), 1, 0.05);
}

TEST(CalibrationTest, ASlowDeviceSaysNothingOfItsNetwork) {
  Rates truth = BenchRates();
  for (double& seconds : truth.seconds) seconds *= 10;
  const Rates defaults = DefaultRates(RunDtype::kFp32, 2, "cpu");
  Calibration calibration(defaults, BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, truth));
  ASSERT_TRUE(calibration.rates().calibrated);
  for (const LinkRates& link : kLinkRates) {
    EXPECT_DOUBLE_EQ(calibration.rates()[link.byte], defaults[link.byte]) << kRateNames[link.byte];
    EXPECT_DOUBLE_EQ(calibration.rates()[link.message], defaults[link.message]) << kRateNames[link.message];
  }
  EXPECT_GT(calibration.rates()[kLinear], 2 * defaults[kLinear]) << "control";
}

// Its phases' seconds say nothing of copies that run beside them.
TEST(CalibrationTest, ADeviceKeepsTheRateOfCopiesThatItHides) {
  const Rates defaults = DefaultRates(RunDtype::kBf16, 1, "cuda");
  ASSERT_TRUE(defaults.copies_overlap);
  Rates truth = defaults;
  for (double& seconds : truth.seconds) seconds *= 3;
  Calibration calibration(defaults, BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, truth));
  ASSERT_TRUE(calibration.rates().calibrated);
  EXPECT_EQ(calibration.rates()[kCopy], defaults[kCopy]);
}

TEST(CalibrationTest, TheDefaultsComeBackWhereOneShapeIsLeft) {
  const Rates defaults = DefaultRates(RunDtype::kFp32, 2, "cpu");
  Calibration calibration(defaults, BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, BenchRates()));
  ASSERT_TRUE(calibration.rates().calibrated);
  calibration.AddAll(
      std::vector<CalibrationSample>(Calibration::kSamplesMax, Made(OneGroup(1023, 256, 8), BenchRates())));
  EXPECT_FALSE(calibration.rates().calibrated);
  EXPECT_EQ(calibration.rates().seconds, defaults.seconds);
}

TEST(CalibrationTest, FewSamplesOrOneShapeLeaveTheDefaults) {
  const Rates defaults = DefaultRates(RunDtype::kFp32, 2, "cpu");
  Calibration calibration(defaults, BenchModel());
  for (int i = 0; i < 20; ++i) calibration.Add(Made(OneGroup(1023, 256, 8), BenchRates()));
  EXPECT_FALSE(calibration.rates().calibrated);
  EXPECT_EQ(calibration.rates().seconds, defaults.seconds);
  EXPECT_EQ(calibration.rates().samples, 20);
  calibration.Add(Made(OneGroup(63, 256, 8), BenchRates()));
  EXPECT_FALSE(calibration.rates().calibrated);
  calibration.Add(Made(OneGroup(511, 256, 2), BenchRates()));
  EXPECT_TRUE(calibration.rates().calibrated);
}

TEST(CalibrationTest, RatesAreMeasuredFromTheLeastNumberOfSamplesOn) {
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  const std::vector<ClusterShape> shapes = Shapes();
  for (size_t i = 0; i < Calibration::kSamplesMin; ++i) {
    EXPECT_FALSE(calibration.rates().calibrated) << i << " samples";
    calibration.Add(Made(shapes[i], BenchRates()));
  }
  EXPECT_TRUE(calibration.rates().calibrated);
}

TEST(CalibrationTest, AStepThatAppliedNothingSaysNothingOfTheUpdate) {
  const Rates truth = BenchRates();
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  for (const ClusterShape& cluster : Shapes()) {
    CalibrationSample sample = Made(cluster, truth);
    if (calibration.samples().size() < 6) sample.apply_s = 0;
    calibration.Add(sample);
  }
  EXPECT_NEAR(calibration.rates()[kParameter] / truth[kParameter], 1, 1e-9);
}

// As of a prefix of a few rows, which takes less than the clock tells apart.
TEST(CalibrationTest, ASmallPhaseHardlyMattersHoweverWrongItIs) {
  const Rates truth = BenchRates();
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  for (const ClusterShape& cluster : Shapes()) calibration.Add(Made(cluster, truth));
  for (int i = 0; i < 4; ++i) {
    CalibrationSample sample = Made(OneGroup(3, 256, 8 + i), truth);
    ASSERT_LT(sample.seconds.prefix_forward, 0.02 * sample.seconds.total());
    sample.seconds.prefix_forward = 0;
    calibration.Add(sample);
  }
  const CalibrationSample other = Made(OneGroup(1000, 50, 3), truth);
  EXPECT_NEAR(Seconds(other.work, calibration.rates()).total() / other.seconds.total(), 1, 0.05);
}

TEST(CalibrationTest, WhatCannotBeAMeasurementIsIgnoredAndTheHistoryIsBounded) {
  Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
  CalibrationSample sample = Made(OneGroup(1023, 256, 8), BenchRates());
  for (const double seconds : {std::nan(""), -1.0, 0.0, HUGE_VAL}) {
    CalibrationSample wrong = sample;
    wrong.seconds.suffix = seconds;
    calibration.Add(wrong);
  }
  EXPECT_EQ(calibration.samples().size(), 0u);
  calibration.AddAll(std::vector<CalibrationSample>(Calibration::kSamplesMax, sample));
  sample.apply_s = 42;
  calibration.Add(sample);
  EXPECT_EQ(calibration.samples().size(), Calibration::kSamplesMax);
  EXPECT_EQ(calibration.samples().back().apply_s, 42) << "the newest are kept";
}

TEST(CalibrationTest, AKeyHoldsWhatRatesDependOn) {
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_threads(2);
  const std::string key = CalibrationKey(BenchModel(), run, "cpu");
  EXPECT_EQ(key, "llama 8x512 heads 8/4x64 ffn 1408 vocabulary 4096, fp32, 2 threads, cpu");
  run.set_optimizer_residency(v1::DEVICE);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key);
  run.set_optimizer_residency(v1::HOST);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key + ", optimizer states in host memory")
      << "an Apply with copies tells nothing of one without";
  run.set_optimizer_residency(v1::DEVICE);
  run.mutable_mesh()->set_dp(1);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key);
  run.mutable_mesh()->set_dp(2);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key + ", dp 2") << "a rank steps its share, and then gathers";
  ModelConfig experts = BenchModel();
  experts.experts = Experts{.count = 16, .per_token = 4};
  EXPECT_NE(CalibrationKey(experts, run, "cpu"), CalibrationKey(BenchModel(), run, "cpu"));
  run.mutable_mesh()->set_dp(1);
  run.mutable_mesh()->set_tp(2);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key + ", tp 2") << "a rank has a part of each layer";
  run.mutable_mesh()->set_pp(2);
  run.mutable_mesh()->set_cp(3);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key + ", pp 2, cp 3, tp 2")
      << "a rank's phases run beside those of other stages";
  run.mutable_mesh()->set_ep(2);
  EXPECT_EQ(CalibrationKey(BenchModel(), run, "cpu"), key + ", pp 2, cp 3, tp 2, ep 2")
      << "products of whole experts are others than those of their columns";
}

// Recorded on a real machine (tests/bench/record_phases.py): each shape is computed in several ways.

constexpr double kTotalBound = 0.10;
// A phase of more than kLargePhase of its step: it is shorter than its step, and others on the machine, whom the least
// of a few runs does not get rid of, slow it by as much. What is smaller hardly moves a choice.
constexpr double kPhaseBound = 0.20, kLargePhase = 0.15;
constexpr double kChoiceBound = 1.03;

struct Recorded {
  std::string shape, name;
  CalibrationSample sample;
};

v1::TapePolicy PolicyOf(const nlohmann::json& name) {
  v1::TapePolicy policy = v1::TAPE_POLICY_UNSPECIFIED;
  EXPECT_TRUE(v1::TapePolicy_Parse(name.get<std::string>(), &policy)) << name;
  return policy;
}

Recorded RecordedOf(const nlohmann::json& line) {
  int64_t prompt, rows, count;
  char slash;
  Recorded r = {.shape = line.at("shape"), .name = line.dump(), .sample = {}};
  std::istringstream(r.shape) >> prompt >> slash >> rows >> slash >> count;
  ByteShape shape;
  shape.config = BenchModel();
  const bool reuse = line.at("schedule") == "reuse";
  PrefixShape prefix;
  if (reuse) {
    prefix = {.rows = prompt - 1,
              .block_rows = line.at("block_rows"),
              .policy = PolicyOf(line.at("prefix_policy")),
              .offload = line.at("offload")};
  }
  r.sample.work = ClusterWork(shape, OneGroup(prompt - 1, rows, count, reuse), prefix,
                              PolicyOf(line.at("suffix_policy")), line.at("waves").get<int64_t>());
  r.sample.seconds = {line.at("prefix_forward"), line.at("suffix"), line.at("prefix_backward")};
  return r;
}

std::vector<Recorded> ReadRecorded() {
  std::ifstream file(STEMMA_RECORDED_PHASES);
  std::vector<Recorded> recorded;
  const nlohmann::json json = nlohmann::json::parse(file);
  for (const auto& line : json.at("samples")) recorded.push_back(RecordedOf(line));
  return recorded;
}

// All of one shape's ways, predicted by rates that never saw the shape.
struct HeldOut {
  std::vector<Recorded> ways;
  Rates rates;
  double Predicted(const Recorded& way) const { return Seconds(way.sample.work, rates).total(); }
};

std::vector<HeldOut> HoldOutEach(const std::vector<Recorded>& recorded) {
  std::map<std::string, std::vector<Recorded>> by_shape;
  for (const Recorded& r : recorded) by_shape[r.shape].push_back(r);
  std::vector<HeldOut> all;
  for (const auto& [shape, ways] : by_shape) {
    Calibration calibration(DefaultRates(RunDtype::kFp32, 2, "cpu"), BenchModel());
    std::vector<CalibrationSample> others;
    for (const Recorded& r : recorded) {
      if (r.shape != shape) others.push_back(r.sample);
    }
    calibration.AddAll(others);
    EXPECT_TRUE(calibration.rates().calibrated);
    all.push_back({ways, calibration.rates()});
  }
  return all;
}

double RelativeError(const CalibrationSample& sample, const Rates& rates) {
  return Seconds(sample.work, rates).total() / sample.seconds.total() - 1;
}

// The largest relative error of a large phase.
double PhaseError(const CalibrationSample& sample, const Rates& rates) {
  const PredictedSeconds predicted = Seconds(sample.work, rates);
  const auto error = [&](double phase_s, double measured_s) {
    return measured_s > kLargePhase * sample.seconds.total() ? std::abs(phase_s / measured_s - 1) : 0;
  };
  return std::max({error(predicted.prefix_forward, sample.seconds.prefix_forward),
                   error(predicted.suffix, sample.seconds.suffix),
                   error(predicted.prefix_backward, sample.seconds.prefix_backward)});
}

struct Errors {
  double worst = 0, mean = 0, worst_phase = 0;
};

Errors ErrorsOf(const std::vector<Recorded>& recorded) {
  Errors errors;
  for (const HeldOut& held_out : HoldOutEach(recorded)) {
    for (const Recorded& way : held_out.ways) {
      const double error = std::abs(RelativeError(way.sample, held_out.rates));
      errors.worst = std::max(errors.worst, error);
      errors.mean += error / static_cast<double>(recorded.size());
      errors.worst_phase = std::max(errors.worst_phase, PhaseError(way.sample, held_out.rates));
    }
  }
  return errors;
}

TEST(RecordedPhasesTest, ShapesThatWereNotSeenArePredictedWithinTenPercent) {
  const std::vector<Recorded> recorded = ReadRecorded();
  ASSERT_GE(recorded.size(), 30u);
  for (const HeldOut& held_out : HoldOutEach(recorded)) {
    for (const Recorded& way : held_out.ways) {
      EXPECT_NEAR(RelativeError(way.sample, held_out.rates), 0, kTotalBound) << way.name;
      EXPECT_LE(PhaseError(way.sample, held_out.rates), kPhaseBound) << way.name;
    }
  }
  EXPECT_LT(ErrorsOf(recorded).mean, 0.05);
}

TEST(RecordedPhasesTest, TheDefaultsAloneAreFarther) {  // the control: without calibration the test above would fail
  const Rates defaults = DefaultRates(RunDtype::kFp32, 2, "cpu");
  double worst = 0;
  for (const Recorded& r : ReadRecorded()) worst = std::max(worst, std::abs(RelativeError(r.sample, defaults)));
  EXPECT_GT(worst, kTotalBound);
}

// The samples with units that `change` takes out of each phase.
template <typename Change>
std::vector<Recorded> Without(const Change& change) {
  std::vector<Recorded> recorded = ReadRecorded();
  for (Recorded& r : recorded) {
    for (Work* work : {&r.sample.work.prefix_forward, &r.sample.work.suffix, &r.sample.work.prefix_backward}) {
      change(*work);
    }
  }
  return recorded;
}

// The control: a model without one of its units misses the bound.
TEST(RecordedPhasesTest, WithoutWhatAWaveCostsHoweverFewItsRowsTheBoundIsMissed) {
  const Errors errors = ErrorsOf(Without([](Work& work) { work[kWave] = work[kWaveBackward] = 0; }));
  EXPECT_GT(errors.worst, 2 * kTotalBound);
  EXPECT_GT(errors.worst_phase, 2 * kPhaseBound);
}

// The way that is predicted to be the fastest for a shape is at most 3 % slower than the fastest of all ways in which
// the shape was computed.
TEST(RecordedPhasesTest, TheWayThatIsChosenIsTheFastestOrNearlySo) {
  for (const HeldOut& held_out : HoldOutEach(ReadRecorded())) {
    const auto chosen = std::min_element(
        held_out.ways.begin(), held_out.ways.end(),
        [&](const Recorded& a, const Recorded& b) { return held_out.Predicted(a) < held_out.Predicted(b); });
    const auto fastest = std::min_element(
        held_out.ways.begin(), held_out.ways.end(),
        [](const Recorded& a, const Recorded& b) { return a.sample.seconds.total() < b.sample.seconds.total(); });
    EXPECT_LE(chosen->sample.seconds.total(), kChoiceBound * fastest->sample.seconds.total()) << chosen->name << "\n"
                                                                                              << fastest->name;
  }
}

}  // namespace
}  // namespace stemma::server
