// What a checkpoint costs: one JSON line. Beside it stands what the machine takes for the same bytes without it, in
// turns with it: a memcpy, a write and an fsync.
//
//   checkpoint_bench --model DIR --directory DIR [--rounds 5]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "server/store/checkpoint_store.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

double Seconds(const std::function<void()>& work) {
  const double begin = RealClock().MonotonicSeconds();
  work();
  return RealClock().MonotonicSeconds() - begin;
}

// {median, lower quartile, upper quartile}
nlohmann::json Quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {values[n / 2], values[n / 4], values[3 * n / 4]};
}

void CheckOk(const absl::Status& status) { CHECK(status.ok()) << status; }

struct Samples {
  std::vector<double> memcpy_s, plain_s, stage_s, write_s, commit_s, verify_s;
};

// Writes what a checkpoint holds, by nothing but a write and an fsync.
void WritePlain(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  CHECK_GE(fd, 0) << path;
  CheckOk(WriteAll(fd, bytes, path));
  CHECK_EQ(fsync(fd), 0);
  close(fd);
}

internal::v1::SaveDone SaveInto(InProcess& run, const std::string& folder, Samples& samples) {
  internal::v1::Save save;
  save.set_id(folder);
  save.set_folder(folder);
  internal::v1::SaveDone done;
  absl::Notification written;
  SaveAnswers answers;
  answers.done = [&](internal::v1::SaveDone answer) {
    done = std::move(answer);
    written.Notify();
  };
  samples.stage_s.push_back(Seconds([&] { CheckOk(run.engine().Save(save, std::move(answers))); }));
  samples.write_s.push_back(Seconds([&] { written.WaitForNotification(); }));
  CHECK(!done.has_failure()) << done.failure().ShortDebugString();
  return done;
}

// Returns the checkpoint's bytes.
uint64_t BenchRound(InProcess& run, const server::CheckpointStore& store, const std::string& directory, uint64_t round,
                    Samples& samples) {
  const std::string name = absl::StrCat("bench-", round);
  const absl::StatusOr<std::string> temporary = store.Begin(name);
  CheckOk(temporary.status());
  internal::v1::SaveDone done = SaveInto(run, *temporary, samples);
  internal::v1::CheckpointManifest manifest;
  manifest.set_name(name);
  manifest.set_lineage("bench");
  manifest.set_step(round);
  *manifest.mutable_parts() = done.parts();
  absl::StatusOr<server::StoredCheckpoint> stored = absl::UnknownError("not committed");
  samples.commit_s.push_back(Seconds([&] { stored = store.Commit(*temporary, manifest, ""); }));
  CheckOk(stored.status());
  samples.verify_s.push_back(Seconds([&] { CheckOk(store.Verify(name, stored->manifest_sha256).status()); }));
  const absl::StatusOr<std::string> retired = store.Retire(name);
  CheckOk(retired.status());
  store.Abandon(*retired);

  const std::string bytes(stored->bytes, 'p');
  const std::unique_ptr<char[]> copy(new char[bytes.size()]);  // untouched, as the memory of a copy is
  samples.memcpy_s.push_back(Seconds([&] { std::memcpy(copy.get(), bytes.data(), bytes.size()); }));
  CHECK_EQ(copy[bytes.size() - 1], 'p');
  samples.plain_s.push_back(Seconds([&] { WritePlain(directory + "/plain", bytes); }));
  std::filesystem::remove(directory + "/plain");
  return stored->bytes;
}

int Main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  std::string model, directory;
  int rounds = 5;
  CLI::App app("What a checkpoint costs");
  app.add_option("--model", model)->required();
  app.add_option("--directory", directory, "an empty one, on the disk in question")->required();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  InProcessOptions options;
  options.run.set_model(model);
  options.run.set_dtype("fp32");
  options.run.set_schedule(v1::REUSE);
  options.run.set_threads(2);
  options.run.mutable_mesh()->set_dp(1);
  options.data_directory = directory;
  const auto run = InProcess::Create(options, MakeCpuBackend());
  CheckOk(run.status());
  const absl::StatusOr<server::CheckpointStore> store = server::CheckpointStore::Open(directory);
  CheckOk(store.status());
  Samples samples;
  uint64_t bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    bytes = BenchRound(**run, *store, directory, static_cast<uint64_t>(round), samples);
  }
  const nlohmann::json line = {{"subject", "checkpoint"},
                               {"bytes", bytes},
                               {"memcpy_s", Quartiles(samples.memcpy_s)},
                               {"plain_s", Quartiles(samples.plain_s)},
                               {"stage_s", Quartiles(samples.stage_s)},
                               {"write_s", Quartiles(samples.write_s)},
                               {"commit_s", Quartiles(samples.commit_s)},
                               {"verify_s", Quartiles(samples.verify_s)}};
  std::puts(line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace stemma::testing

int main(int argc, char** argv) { return stemma::testing::Main(argc, argv); }
