// A run that is saved and loaded goes on as if nothing had happened: drawn models, dtypes, ranks and residencies.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/worker/checkpoint/held_place.h"
#include "tests/worker/checkpoint/training_run.h"
#include "worker/model/weights_digest.h"

namespace stemma::testing {
namespace {

class RoundTripTest : public ::testing::TestWithParam<int> {
 protected:
  std::string model() const { return folder_ / "model"; }
  std::string data() const { return folder_ / "data"; }

  // Exports by all ranks at once, as an export needs, and returns the files.
  std::map<std::string, std::string> ExportOf(InProcess& run, int ranks, const std::string& name) const {
    internal::v1::Export request;
    request.set_name(name);
    request.set_folder(".tmp-of-" + name);
    std::filesystem::create_directories(data() + "/exports/" + request.folder());  // as the server does
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { EXPECT_THAT(run.engine(rank).Export(request), IsOk()); });
    }
    for (std::thread& thread : threads) thread.join();
    return ContentsOf(data() + "/exports/" + name);
  }

  const TempFolder folder_;
};

TEST_P(RoundTripTest, TheRunGoesOnWithTheSameBits) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Draws draw(static_cast<uint32_t>(GetParam()));
  ASSERT_THAT(WriteRandomModel(DrawModel(draw), DrawInit(draw), model()), IsOk());
  const char* dtypes[] = {"fp32", "bf16", "fp64"};
  const auto residency = [&] { return draw(0, 1) == 1 ? v1::HOST : v1::DEVICE; };
  RunSettings settings = {.model = model(), .data = data(), .dtype = dtypes[GetParam() % 3]};
  settings.ranks = static_cast<int>(draw(1, 4));
  settings.residency = residency();
  const auto saved_at = static_cast<uint64_t>(draw(0, 2)), end = saved_at + static_cast<uint64_t>(draw(1, 2));

  const auto run = MakeRun(settings);
  ASSERT_NE(run, nullptr);
  for (uint64_t step = 0; step < saved_at; ++step) MakeStep(*run, step);
  const StateTensors at_save = WholeState(*run, settings.ranks);
  // One rank has written one file, the others all of theirs perhaps, when the next steps change everything.
  const int held_rank = static_cast<int>(draw(0, settings.ranks - 1));
  const HeldPlace held(folder_ / "failpoints", "checkpoint.part_written", held_rank);
  RanksSave save(*run, settings.ranks, data(), "c");
  held.WaitUntilReached();
  for (uint64_t step = saved_at; step < end; ++step) MakeStep(*run, step);
  EXPECT_EQ(save.answers(held_rank).done_count(), 0u);
  held.LetGo();
  const std::string digest = save.WaitForWhole();
  const StateTensors at_end = WholeState(*run, settings.ranks);
  ASSERT_NE(FirstDifferent(at_save, at_end), "");

  RunSettings again = settings;
  again.residency = residency();
  again.checkpoint = "c";
  again.step = saved_at;
  const auto loaded = MakeRun(again);
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(FirstDifferent(at_save, WholeState(*loaded, again.ranks)), "");
  EXPECT_EQ(loaded->engine().ready().model_digest(), digest) << "a run that loads a checkpoint tells its digest";
  for (uint64_t step = saved_at; step < end; ++step) MakeStep(*loaded, step);
  EXPECT_EQ(FirstDifferent(at_end, WholeState(*loaded, again.ranks)), "");
  EXPECT_EQ(ExportOf(*loaded, again.ranks, "loaded"), ExportOf(*run, settings.ranks, "went-on"));

  // Another mesh: the same whole state, of which each rank has another part.
  RunSettings elsewhere = again;
  elsewhere.ranks = 1 + settings.ranks % 4;
  const auto moved = MakeRun(elsewhere);
  ASSERT_NE(moved, nullptr);
  StateTensors expected = at_save, found = WholeState(*moved, elsewhere.ranks);
  const auto is_weight = [](const auto& entry) { return entry.first.find(" weight@") != std::string::npos; };
  for (const auto& [name, weight] : found) {
    if (is_weight(std::pair(name, weight))) {
      EXPECT_TRUE(weight.equal(at_save.at(name.substr(0, name.find('@')) + "@0"))) << name;
    }
  }
  std::erase_if(expected, is_weight);
  std::erase_if(found, is_weight);
  EXPECT_EQ(FirstDifferent(expected, found), "");
}

INSTANTIATE_TEST_SUITE_P(Random, RoundTripTest, ::testing::Range(1, 19));

TEST_F(RoundTripTest, TheModelOfACheckpointIsTheSourceInTheDtypeOfTheMasters) {
  ModelConfig config = SyntheticModel({.hidden = 16, .layers = 2, .ffn = 12, .vocab = 40});
  config.tie_word_embeddings = true;
  const ModelInitOptions options = {.dtype = safetensors::Dtype::kBF16, .max_shard_bytes = 9'000, .eos_token_id = 2};
  ASSERT_THAT(WriteRandomModel(config, options, model()), IsOk());
  for (const auto& [name, text] : {std::pair("tokenizer.json", "{}"), {"merges.txt", ""}, {"notes.txt", "mine"}}) {
    ASSERT_THAT(WriteFile(model() + "/" + name, text), IsOk());
  }
  const auto run = MakeRun({.model = model(), .data = data(), .dtype = "bf16", .ranks = 2});
  ASSERT_NE(run, nullptr);
  MakeStep(*run, 0);
  RanksSave save(*run, 2, data(), "c");
  save.WaitForWhole();
  const auto source = ContentsOf(model()), saved = ContentsOf(save.path());
  EXPECT_EQ(saved.at("tokenizer.json"), "{}");
  EXPECT_EQ(saved.at("merges.txt"), "");
  EXPECT_EQ(saved.at("generation_config.json"), source.at("generation_config.json"));
  EXPECT_FALSE(saved.contains("notes.txt"));
  auto expected_config = nlohmann::ordered_json::parse(source.at("config.json"));
  EXPECT_EQ(expected_config["dtype"], "bfloat16");
  expected_config["dtype"] = "float32";
  EXPECT_EQ(nlohmann::ordered_json::parse(saved.at("config.json")), expected_config);
  EXPECT_EQ(nlohmann::json::parse(saved.at("model.safetensors.index.json"))["weight_map"],
            nlohmann::json::parse(source.at("model.safetensors.index.json"))["weight_map"]);
  EXPECT_THAT(OpenModelDirectory(save.path()), IsOk());
}

// What else decides the bits of a step: AdamW's bias correction takes the step, which Configure brings.
TEST_F(RoundTripTest, TheStepComesFromConfigure) {
  ASSERT_THAT(WriteRandomModel(SyntheticModel({.hidden = 16, .layers = 1, .ffn = 12, .vocab = 40}), {}, model()),
              IsOk());
  RunSettings settings = {.model = model(), .data = data()};
  const auto run = MakeRun(settings);
  ASSERT_NE(run, nullptr);
  MakeStep(*run, 0);
  RanksSave(*run, 1, data(), "c").WaitForWhole();
  MakeStep(*run, 1);
  settings.checkpoint = "c";
  for (const uint64_t step : {0, 1, 2}) {
    settings.step = step;
    const auto loaded = MakeRun(settings);
    ASSERT_NE(loaded, nullptr);
    MakeStep(*loaded, 1);
    EXPECT_EQ(FirstDifferent(WholeState(*run, 1), WholeState(*loaded, 1)).empty(), step == 1) << step;
  }
}

TEST_F(RoundTripTest, ACheckpointIsNamedAndNotAPath) {
  ASSERT_THAT(WriteRandomModel(SyntheticModel({.hidden = 16, .layers = 1, .ffn = 12, .vocab = 40}), {}, model()),
              IsOk());
  InProcessOptions options;
  options.run.set_model(model());
  options.run.set_dtype("fp32");
  options.data_directory = data();
  for (const auto& [name, why] : {std::pair("../c", "is not a valid name"), {"..", "is not a valid name"}}) {
    options.checkpoint = name;
    EXPECT_THAT(InProcess::Create(options, MakeCpuBackend()), Invalid(why));
  }
  options.checkpoint = "none";
  EXPECT_THAT(InProcess::Create(options, MakeCpuBackend()),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("checkpoints/none")));
}

TEST_F(RoundTripTest, NumbersOfAnotherDtypeAreConverted) {
  ASSERT_THAT(WriteRandomModel(SyntheticModel({.hidden = 16, .layers = 1, .ffn = 12, .vocab = 40}), {}, model()),
              IsOk());
  for (const auto& [from, to] : {std::pair("fp64", "fp32"), {"fp32", "fp64"}}) {
    const auto run = MakeRun({.model = model(), .data = data(), .dtype = from});
    ASSERT_NE(run, nullptr);
    MakeStep(*run, 0);
    RanksSave(*run, 1, data(), from).WaitForWhole();
    ::testing::internal::CaptureStderr();
    const auto loaded = MakeRun({.model = model(), .data = data(), .dtype = to, .checkpoint = from, .step = 1});
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_NE(loaded, nullptr);
    EXPECT_THAT(log, ::testing::HasSubstr("are converted to the run's " +
                                          std::string(to == std::string("fp64") ? "F64" : "F32")));
    StateTensors expected = WholeState(*run, 1);
    const at::ScalarType dtype = to == std::string("fp64") ? at::kDouble : at::kFloat;
    for (auto& [name, tensor] : expected) tensor = tensor.to(dtype);
    EXPECT_EQ(FirstDifferent(expected, WholeState(*loaded, 1)), "") << from;
  }
}

}  // namespace
}  // namespace stemma::testing
