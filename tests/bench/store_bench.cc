// What the journal and the spool cost: one JSON line per subject. Beside each stands what the machine takes for the
// same work without them, in turns with it: a write and an fsync, SHA-256 of the same bytes.
//
//   store_bench --directory DIR [--rows 400] [--mebibytes 256] [--rounds 5]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/mesh.h"
#include "common/base/split_mix.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"
#include "server/store/journal.h"
#include "server/store/spool.h"

namespace stemma::server {
namespace {

constexpr uint64_t kRowBytes = 600;                          // a StepCommitted or StepApplied row, about
constexpr uint64_t kRolloutBytes = 16384;                    // tokens and log-probs of 2048 tokens
constexpr uint64_t kGroupBytes = 4096 + 16 * kRolloutBytes;  // one group of RequestOf, without its names
constexpr uint64_t kRestartRows = 10000;

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

TrainingRequest RequestOf(uint64_t bytes) {
  SplitMix64 random(1);
  std::string content(kRolloutBytes, '\0');
  for (char& c : content) c = static_cast<char>(random.Next());
  TrainingRequest request;
  request.update.mutable_request()->set_request_id("bench");
  for (uint64_t done = 0; done < bytes;) {
    v1::PromptGroup& group = request.groups.emplace_back();
    group.set_uid(absl::StrCat("g", request.groups.size()));
    group.set_prompt_tokens(content.substr(0, 4096));
    for (int r = 0; r < 16; ++r) {
      v1::Rollout& rollout = *group.add_rollouts();
      rollout.set_rollout_id(absl::StrCat(group.uid(), "/", r));
      rollout.set_response_tokens(content.substr(0, kRolloutBytes / 2));
      rollout.set_old_log_probs(content.substr(kRolloutBytes / 2));
      rollout.set_advantage(0.5);
    }
    done += group.ByteSizeLong();
  }
  return request;
}

void BenchAppends(const std::string& directory, int rows) {
  const std::string body(kRowBytes, 'r');
  absl::StatusOr<Journal> journal = Journal::Open(directory);
  CheckOk(journal.status());
  const int fd = open((directory + "/plain").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK_GE(fd, 0);
  std::vector<double> plain, first, next, settling;
  for (int i = 0; i < rows; ++i) {
    plain.push_back(Seconds([&] {
      CheckOk(WriteAll(fd, std::string(4096, 'p'), "plain"));
      CHECK_EQ(fsync(fd), 0);
    }));
    // The first row of an emptied log forces the log's header too.
    for (std::vector<double>* seconds : {&first, &next}) {
      seconds->push_back(Seconds([&] { CheckOk(journal->Append(journal->last_n() + 1, body, /*settles=*/false)); }));
    }
    settling.push_back(Seconds([&] { CheckOk(journal->Append(journal->last_n() + 1, body, /*settles=*/true)); }));
  }
  close(fd);
  const nlohmann::json line = {{"subject", "append"},
                               {"rows", rows},
                               {"row_bytes", kRowBytes},
                               {"plain_s", Quartiles(plain)},
                               {"first_append_s", Quartiles(first)},
                               {"append_s", Quartiles(next)},
                               {"settling_s", Quartiles(settling)}};
  std::puts(line.dump().c_str());
}

void BenchRestart(const std::string& directory, int rounds) {
  {
    absl::StatusOr<Journal> journal = Journal::Open(directory);
    CheckOk(journal.status());
    while (journal->last_n() < kRestartRows) {
      CheckOk(journal->Append(journal->last_n() + 1, std::string(kRowBytes, 'r'), /*settles=*/false));
    }
  }
  std::vector<double> opened;
  for (int i = 0; i < rounds; ++i) {
    absl::StatusOr<Journal> journal = absl::UnknownError("not opened");
    opened.push_back(Seconds([&] { journal = Journal::Open(directory); }));
    CheckOk(journal.status());
    CHECK_EQ(journal->TakeRows().size(), kRestartRows);
  }
  absl::StatusOr<Journal> journal = Journal::Open(directory);
  const double compact_s =
      Seconds([&] { CheckOk(journal->Compact(journal->last_n() + 1, std::string(1 << 20, 's'))); });
  const nlohmann::json line = {{"subject", "restart"},
                               {"rows", kRestartRows},
                               {"row_bytes", kRowBytes},
                               {"open_s", Quartiles(opened)},
                               {"compact_to_1_MiB_s", compact_s}};
  std::puts(line.dump().c_str());
}

void BenchSpool(const std::string& subject, const std::string& directory, uint64_t bytes, int rounds) {
  const absl::StatusOr<Spool> spool = Spool::Open(directory);
  CheckOk(spool.status());
  const TrainingRequest request = RequestOf(bytes);
  const std::string plain_bytes(std::min<uint64_t>(bytes, 1 << 20), 'p');
  std::vector<double> plain, hashed, written, read;
  uint64_t file_bytes = 0;
  for (int i = 0; i < rounds; ++i) {
    const std::string path = directory + "/plain";
    plain.push_back(Seconds([&] {
      const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
      for (uint64_t done = 0; done < bytes; done += plain_bytes.size()) CheckOk(WriteAll(fd, plain_bytes, path));
      CHECK_EQ(fsync(fd), 0);
      close(fd);
    }));
    std::filesystem::remove(path);
    hashed.push_back(Seconds([&] {
      Sha256 sha;
      for (uint64_t done = 0; done < bytes; done += plain_bytes.size()) sha.Update(plain_bytes);
      CHECK_EQ(sha.FinishHex().size(), 64u);
    }));
    absl::StatusOr<internal::v1::SpoolFile> file = absl::UnknownError("not written");
    written.push_back(Seconds([&] { file = spool->Write("bench.req", request, RequestPlan(), MakeMesh({.dp = 1})); }));
    CheckOk(file.status());
    file_bytes = file->bytes();
    read.push_back(Seconds([&] { CheckOk(spool->Read(*file).status()); }));
    CheckOk(spool->Remove("bench.req"));
  }
  const nlohmann::json line = {
      {"subject", subject},          {"bytes", file_bytes},           {"groups", request.groups.size()},
      {"plain_s", Quartiles(plain)}, {"sha256_s", Quartiles(hashed)}, {"write_s", Quartiles(written)},
      {"read_s", Quartiles(read)}};
  std::puts(line.dump().c_str());
}

int Main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  std::string directory;
  int rows = 400, rounds = 5;
  uint64_t mebibytes = 256;
  CLI::App app("What the journal and the spool cost");
  app.add_option("--directory", directory, "an empty one, on the disk in question")->required();
  app.add_option("--rows", rows);
  app.add_option("--mebibytes", mebibytes);
  app.add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  for (const char* name : {"appends", "restart", "spool"}) std::filesystem::create_directories(directory + "/" + name);
  BenchAppends(directory + "/appends", rows);
  BenchRestart(directory + "/restart", rounds);
  BenchSpool("spool", directory + "/spool", mebibytes << 20, rounds);
  BenchSpool("spool_group", directory + "/spool", kGroupBytes, rows);
  return 0;
}

}  // namespace
}  // namespace stemma::server

int main(int argc, char** argv) { return stemma::server::Main(argc, argv); }
