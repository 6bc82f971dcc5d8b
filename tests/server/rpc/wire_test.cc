// Requests of one message, decoded by the server itself: none takes more memory than it may.
#include "server/rpc/wire.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/error.h"
#include "grpcpp/support/slice.h"
#include "stemma/v1/training.pb.h"

namespace stemma::server {
namespace {

grpc::ByteBuffer Bytes(const std::vector<std::string>& pieces) {
  std::vector<grpc::Slice> slices(pieces.begin(), pieces.end());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(WireTest, ARequestInPiecesIsItself) {
  v1::SaveCheckpointRequest sent;
  sent.set_name("start");
  sent.set_client_state(std::string(1 << 20, 'x'));
  const std::string bytes = sent.SerializeAsString();
  v1::SaveCheckpointRequest received;
  ASSERT_TRUE(DecodeRequest(Bytes({bytes.substr(0, 3), "", bytes.substr(3)}), kSaveBytesMax, received).ok());
  EXPECT_EQ(received.SerializeAsString(), bytes);
}

TEST(WireTest, ARequestOfTooManyBytesIsRefused) {
  v1::GetRequestRequest sent, received;
  sent.set_request_id(std::string(kQueryBytesMax, 'x'));
  const absl::Status refused = DecodeRequest(Bytes({sent.SerializeAsString()}), kQueryBytesMax, received);
  EXPECT_TRUE(HasReason(refused, Reason::kLimitExceeded)) << refused;
  EXPECT_TRUE(received.request_id().empty()) << "nothing is decoded";
}

// An unknown field without content has two bytes, and takes some sixty in memory.
TEST(WireTest, ARequestThatWouldTakeManyTimesItsBytesIsRefused) {
  v1::GetModelRequest received;
  const std::string few = Repeated(std::string("\x7a\x00", 2), 1000);
  EXPECT_TRUE(DecodeRequest(Bytes({few}), kQueryBytesMax, received).ok()) << "control: a newer client's fields";
  const std::string many = Repeated(std::string("\x7a\x00", 2), kQueryBytesMax / 2);
  const absl::Status refused = DecodeRequest(Bytes({many}), kQueryBytesMax, received);
  EXPECT_TRUE(HasReason(refused, Reason::kLimitExceeded)) << refused;
}

TEST(WireTest, WhatIsNoMessageIsRefused) {
  v1::GetRequestRequest received;
  for (const std::string& bytes : {std::string("\x0a"), std::string("\x0a\x05x"), std::string("\x0a\x01\xff", 3)}) {
    const absl::Status refused = DecodeRequest(Bytes({bytes}), kQueryBytesMax, received);
    EXPECT_TRUE(HasReason(refused, Reason::kInvalidRequest)) << refused;
  }
}

TEST(WireTest, EncodedIsDecoded) {
  v1::Checkpoint sent, received;
  sent.set_name("end");
  grpc::ByteBuffer bytes;
  ASSERT_TRUE(Encode(sent, bytes).ok());
  ASSERT_TRUE(DecodeRequest(bytes, kQueryBytesMax, received).ok());
  EXPECT_EQ(received.name(), "end");
}

}  // namespace
}  // namespace stemma::server
