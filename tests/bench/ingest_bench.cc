// What it costs the server to take a request in: seconds from the first message of a stream to its answer, beside a
// plain gRPC service that parses the same messages and keeps nothing, in turns with it. Both are processes of their own
// on the loopback. The server reads, checks and digests the whole request and refuses it then, for its lineage: nothing
// is planned. One JSON line.
//
//   ingest_bench --server HOST:PORT [--mebibytes 256] [--rounds 5] [--vocab 4096] [--tls-ca FILE]
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/calls/submit.h"
#include "common/base/clock.h"
#include "common/base/split_mix.h"
#include "common/base/tls_options.h"
#include "common/rpc/tls_credentials.h"
#include "glog/logging.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma {
namespace {

constexpr int kPromptTokens = 512, kResponseTokens = 1024, kRollouts = 16;

// Parses what comes, and that is all.
class PlainService final : public v1::TrainingService::Service {
  grpc::Status UpdateActor(grpc::ServerContext*, grpc::ServerReader<v1::GroupPart>* reader,
                           v1::RequestStatus*) override {
    v1::GroupPart part;
    while (reader->Read(&part)) part.Clear();
    return {};
  }
};

// Serves until it is killed, or its parent ends. Writes its port into the pipe.
[[noreturn]] void ServePlainly(int pipe) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PlainService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  CHECK(server != nullptr);
  PCHECK(write(pipe, &port, sizeof(port)) == sizeof(port));
  server->Wait();
  _exit(0);
}

// Before gRPC begins in this process. Returns the address.
std::string StartPlainly(pid_t& pid) {
  int ends[2];
  PCHECK(pipe(ends) == 0);
  pid = fork();
  PCHECK(pid >= 0);
  if (pid == 0) ServePlainly(ends[1]);
  int port = 0;
  PCHECK(read(ends[0], &port, sizeof(port)) == sizeof(port));
  return absl::StrCat("127.0.0.1:", port);
}

v1::UpdateHeader HeaderOf(const std::string& request_id) {
  v1::UpdateHeader header;
  header.mutable_request()->set_request_id(request_id);
  header.mutable_request()->set_expected_lineage("none-that-there-is");
  v1::LossConfig& loss = *header.mutable_loss();
  loss.set_loss_mode("vanilla");
  loss.set_clip_ratio_low(0.2);
  loss.set_clip_ratio_high(0.2);
  loss.set_loss_agg_mode("token-mean");
  loss.set_temperature(1);
  v1::AdamParams& adam = *header.mutable_adam();
  adam.set_learning_rate(1e-6);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_eps(1e-8);
  adam.set_weight_decay(0);
  adam.set_max_grad_norm(1);
  header.mutable_old()->set_from(v1::LogProbSource::CLIENT);
  return header;
}

std::string Tokens(SplitMix64& random, int count, uint32_t vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Next() % vocab);
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(int32_t)};
}

std::vector<v1::PromptGroup> GroupsOf(uint64_t bytes, uint32_t vocab) {
  SplitMix64 random(1);
  const std::vector<float> log_probs(kResponseTokens, -1.5f);
  std::vector<v1::PromptGroup> groups;
  for (uint64_t done = 0; done < bytes; done += groups.back().ByteSizeLong()) {
    v1::PromptGroup& group = groups.emplace_back();
    group.set_uid(absl::StrCat("g", groups.size()));
    group.set_prompt_tokens(Tokens(random, kPromptTokens, vocab));
    for (int r = 0; r < kRollouts; ++r) {
      v1::Rollout& rollout = *group.add_rollouts();
      rollout.set_rollout_id(absl::StrCat(group.uid(), "/", r));
      rollout.set_response_tokens(Tokens(random, kResponseTokens, vocab));
      rollout.set_old_log_probs(log_probs.data(), log_probs.size() * sizeof(float));
      rollout.set_advantage(0.5);
    }
  }
  return groups;
}

uint64_t BytesOf(const std::vector<v1::PromptGroup>& groups) {
  uint64_t bytes = 0;
  for (const v1::PromptGroup& group : groups) bytes += group.ByteSizeLong();
  return bytes;
}

double SendSeconds(v1::TrainingService::Stub& stub, const std::vector<v1::PromptGroup>& groups, bool refused) {
  static int requests = 0;
  const v1::UpdateHeader header = HeaderOf(absl::StrCat("ingest-", ++requests));
  grpc::ClientContext context;
  const double begin = RealClock().MonotonicSeconds();
  const absl::Status status = cli::UpdateActor(stub, context, header, groups).status();
  const double seconds = RealClock().MonotonicSeconds() - begin;
  CHECK_EQ(status.ok(), !refused) << status;
  CHECK(!refused || absl::StrContains(status.message(), "lineage")) << status;  // for nothing that is seen sooner
  return seconds;
}

// {median, lower quartile, upper quartile}
nlohmann::json Quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {values[n / 2], values[n / 4], values[3 * n / 4]};
}

void Run(const std::string& plain, const std::string& server, const TlsFiles& tls,
         const std::vector<v1::PromptGroup>& groups, int rounds) {
  const auto stub_of = [](const std::string& address, const TlsFiles& files) {
    return v1::TrainingService::NewStub(grpc::CreateChannel(address, ChannelCredentialsOf(files)));
  };
  const auto plain_stub = stub_of(plain, {}), server_stub = stub_of(server, tls);
  std::vector<double> plain_s, server_s;
  for (int round = 0; round <= rounds; ++round) {
    const double of_plain = SendSeconds(*plain_stub, groups, /*refused=*/false);
    const double of_server = SendSeconds(*server_stub, groups, /*refused=*/true);
    if (round == 0) continue;  // connects
    plain_s.push_back(of_plain);
    server_s.push_back(of_server);
  }
  const nlohmann::json line = {{"subject", "ingest"},
                               {"bytes", BytesOf(groups)},
                               {"plain_s", Quartiles(plain_s)},
                               {"server_s", Quartiles(server_s)}};
  std::puts(line.dump().c_str());
}

}  // namespace
}  // namespace stemma

int main(int argc, char** argv) {
  CLI::App app("Seconds of taking a request in");
  std::string server;
  uint64_t mebibytes = 256;
  int rounds = 5;
  uint32_t vocab = 4096;
  app.add_option("--server", server, "clients' address of a stemma-server")->required();
  app.add_option("--mebibytes", mebibytes, "of the request");
  app.add_option("--rounds", rounds, "of each");
  app.add_option("--vocab", vocab, "of the server's model");
  stemma::TlsFiles tls;
  stemma::AddClientTlsOptions(&app, tls);
  CLI11_PARSE(app, argc, argv);
  pid_t pid = -1;
  const std::string plain = stemma::StartPlainly(pid);
  stemma::Run(plain, server, tls, stemma::GroupsOf(mebibytes << 20, vocab), rounds);
  kill(pid, SIGKILL);
}
