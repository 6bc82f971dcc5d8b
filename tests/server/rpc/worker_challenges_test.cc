// Who is admitted as a worker: by a proof of the secret over a nonce of this server's, once, and not for long.
#include "server/rpc/worker_challenges.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/worker_proof.h"

namespace stemma::server {
namespace {

const std::string kSecret(64, 's'), kWorkersNonce(64, 'a');
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(5);

class WorkerChallengesTest : public ::testing::Test {
 protected:
  WorkerChallenges challenges_{kSecret};
  const WorkerChallenges::Challenge challenge_ = challenges_.Make(kWorkersNonce, kNow);
  const std::string proof_ = WorkerProof(kSecret, challenge_.nonce);
};

TEST_F(WorkerChallengesTest, AProofOfTheSecretIsTakenOnce) {
  EXPECT_EQ(challenges_.Take(challenge_.nonce, proof_, kNow), absl::OkStatus());
  const absl::Status again = challenges_.Take(challenge_.nonce, proof_, kNow);
  EXPECT_EQ(again, absl::UnauthenticatedError("its proof was used before"));
}

TEST_F(WorkerChallengesTest, TheServersOwnProofIsOfBothNonces) {
  EXPECT_TRUE(IsNonce(challenge_.nonce));
  EXPECT_EQ(challenge_.proof, ServerProof(kSecret, kWorkersNonce, challenge_.nonce));
  EXPECT_NE(challenge_.proof, ServerProof(kSecret, std::string(64, 'b'), challenge_.nonce));
  EXPECT_NE(challenge_.proof, proof_) << "nobody passes the server's proof on as a worker's";
}

TEST_F(WorkerChallengesTest, AWrongProofIsRefusedAndUsesNothingUp) {
  for (const std::string& proof :
       {std::string(), kSecret, challenge_.proof, proof_ + "0", WorkerProof("other", challenge_.nonce)}) {
    EXPECT_EQ(challenges_.Take(challenge_.nonce, proof, kNow).code(), absl::StatusCode::kUnauthenticated) << proof;
  }
  EXPECT_TRUE(challenges_.Take(challenge_.nonce, proof_, kNow).ok());
}

TEST_F(WorkerChallengesTest, ANonceOfAnotherProcessOrOfNobodyIsRefused) {
  WorkerChallenges before(kSecret);  // the same server, before it was started again
  const std::string old = before.Make(kWorkersNonce, kNow).nonce;
  for (const std::string& nonce : {old, kWorkersNonce, std::string(), std::string("x"), challenge_.nonce + "0"}) {
    EXPECT_FALSE(challenges_.Take(nonce, WorkerProof(kSecret, nonce), kNow).ok()) << nonce;
  }
}

TEST_F(WorkerChallengesTest, ANonceEndsAMinuteOrTwoLater) {
  EXPECT_FALSE(challenges_.Take(challenge_.nonce, proof_, kNow + absl::Minutes(2)).ok());
  EXPECT_TRUE(challenges_.Take(challenge_.nonce, proof_, kNow + absl::Seconds(59)).ok());
}

// What is remembered of used ones goes, and never so early that one could be used again.
TEST_F(WorkerChallengesTest, WhatWasUsedStaysUsedWhileItsNonceIsGood) {
  std::set<std::string> used;
  for (int second = 0; second < 600; second += 7) {
    const absl::Time now = kNow + absl::Seconds(second);
    const std::string nonce = challenges_.Make(kWorkersNonce, now).nonce;
    ASSERT_TRUE(challenges_.Take(nonce, WorkerProof(kSecret, nonce), now).ok());
    used.insert(nonce);
    for (const std::string& before : used) {
      ASSERT_FALSE(challenges_.Take(before, WorkerProof(kSecret, before), now).ok()) << second;
    }
  }
}

TEST(WorkerProofTest, IsHmacSha256) {
  // openssl: printf 'worker N' | openssl dgst -sha256 -hmac key
  EXPECT_EQ(WorkerProof("key", "N"), "46b70327e7753d8612dc36b864fd2cff2889efacea7688d2b1197cf32abd9bd5");
  EXPECT_EQ(ServerProof("key", "W", "S"), "12e3ef92a136953acdb086e76bdf494b767b791f124c7b3a25ca218fa8a77a62");
}

TEST(WorkerProofTest, NoncesAreOfHexDigitsAndDiffer) {
  EXPECT_TRUE(IsNonce(NewNonce()));
  EXPECT_NE(NewNonce(), NewNonce());
  EXPECT_FALSE(IsNonce(std::string(63, '0')));
  EXPECT_FALSE(IsNonce(std::string(63, '0') + "g"));
}

}  // namespace
}  // namespace stemma::server
