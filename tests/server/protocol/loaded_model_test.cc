// That ranks which loaded other models than the server's, or than each other, do not serve.
#include "server/protocol/loaded_model.h"

#include "common/model/model_init.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"
#include "tests/server/protocol/made_gangs.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::IsOk;

TEST(GangTest, RanksThatLoadedOtherWeightsDoNotServe) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, WorkerAt("a", "cpu:1")).status(), IsOk());
  ASSERT_THAT(gang.OpenStore(1, "127.0.0.1:9").status(), IsOk());
  internal::v1::Ready ready = Loaded();
  ready.set_model_digest("one");
  ASSERT_THAT(gang.BecomeReady(1, ready), IsOk());
  ready.set_model_digest("two");
  const absl::Status status = gang.BecomeReady(2, ready);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_FALSE(gang.serves());
}

TEST(GangTest, RanksWhoseModelFilesDifferDoNotServeThoughTheyHoldPartsOfOneModel) {
  Gang gang(MeshOf(2));
  ASSERT_THAT(gang.Join(kStart, 1, WorkerAt("a", "cpu:0")), IsOk());
  ASSERT_THAT(JoinAndBegin(gang, kStart, 2, WorkerAt("a", "cpu:1")).status(), IsOk());
  ASSERT_THAT(gang.OpenStore(1, "127.0.0.1:9").status(), IsOk());
  internal::v1::Ready ready = Loaded();
  ready.set_model_digest("of all ranks together");
  ready.set_model_files("one");
  ASSERT_THAT(gang.BecomeReady(1, ready), IsOk());
  ready.set_model_files("two");
  EXPECT_EQ(gang.BecomeReady(2, ready).code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(gang.serves());
  ready.set_model_files("one");
  EXPECT_THAT(gang.BecomeReady(2, ready), IsOk());
}

// Whatever its weights are, and alone as well.
TEST(GangTest, AWorkerWhoseConfigurationIsNotTheServersDoesNotServe) {
  GangOptions options = Options();
  options.model = SmallLlama();
  ModelConfig other = options.model;
  other.rope_theta *= 2;
  Gang gang(options);
  ASSERT_THAT(JoinAndBegin(gang, kStart, 7, Worker("w")).status(), IsOk());
  internal::v1::Ready ready = Loaded();
  ready.set_model_config(ModelConfigJson(other));
  const absl::Status status = gang.BecomeReady(7, ready);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("whose rope_theta is not that of the server's"));
  EXPECT_FALSE(gang.serves());
  ready.set_model_config("{}");
  EXPECT_EQ(gang.BecomeReady(7, ready).code(), absl::StatusCode::kInvalidArgument);
  ready.set_model_config(ModelConfigJson(options.model));
  EXPECT_THAT(gang.BecomeReady(7, ready), IsOk());
  EXPECT_TRUE(gang.serves());
}

}  // namespace
}  // namespace stemma::server
