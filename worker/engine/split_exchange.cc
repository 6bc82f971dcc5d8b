#include "worker/engine/split_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/exceptions.h"

namespace stemma::worker {
namespace {

constexpr char kWord[] = "split.word", kK[] = "split.k", kV[] = "split.v", kGk[] = "split.gk", kGv[] = "split.gv";
constexpr int64_t kValuesFollow = 0;

// Makes an exchange from its word on. An exception there leaves the other rank in the middle of it: nothing can go on.
template <typename Fn>
absl::Status RunExchange(const Fn& fn) {
  absl::Status status = CatchExceptions(fn);
  if (status.ok() || absl::IsUnavailable(status) || absl::IsAborted(status)) return status;
  return absl::UnavailableError(
      absl::StrCat("this rank stopped in the middle of an exchange: ", std::string(status.message())));
}

std::vector<at::Tensor> Contiguous(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.contiguous());
  return result;
}

}  // namespace

absl::Status SplitExchange::SendKv(int to, const LocalHotSet& kv) {
  const std::vector<at::Tensor> k = Contiguous(kv.k_TKE), v = Contiguous(kv.v_TKE);
  return RunExchange([&]() -> absl::Status {
    RETURN_IF_ERROR(SendWord(to, kValuesFollow));
    for (size_t l = 0; l < k.size(); ++l) {
      RETURN_IF_ERROR(Send(kK, k[l], to));
      RETURN_IF_ERROR(Send(kV, v[l], to));
    }
    return absl::OkStatus();
  });
}

absl::Status SplitExchange::ReceiveKv(int from, LocalHotSet& kv) {
  return RunExchange([&]() -> absl::Status {
    RETURN_IF_ERROR(ReceiveWord(from));
    for (size_t l = 0; l < kv.k_TKE.size(); ++l) {
      RETURN_IF_ERROR(data_.Receive(kK, kv.k_TKE[l], from));
      RETURN_IF_ERROR(data_.Receive(kV, kv.v_TKE[l], from));
    }
    return absl::OkStatus();
  });
}

absl::Status SplitExchange::SendGradients(int to, const LocalHotSet& kv) {
  return RunExchange([&]() -> absl::Status {
    RETURN_IF_ERROR(SendWord(to, kValuesFollow));
    for (size_t l = kv.gk_TKE.size(); l-- > 0;) {
      RETURN_IF_ERROR(Send(kGk, kv.gk_TKE[l], to));
      RETURN_IF_ERROR(Send(kGv, kv.gv_TKE[l], to));
    }
    return absl::OkStatus();
  });
}

absl::Status SplitExchange::ReceiveGradients(int from, LocalHotSet& kv) {
  at::Tensor scratch = Scratch(kv.rows(), context_.weights->accumulate_dtype);
  const auto receive_and_add = [&](const char* name, at::Tensor& gradient) -> absl::Status {
    RETURN_IF_ERROR(data_.Receive(name, scratch, from));
    gradient.add_(scratch);
    return absl::OkStatus();
  };
  return RunExchange([&]() -> absl::Status {
    RETURN_IF_ERROR(ReceiveWord(from));
    for (size_t l = kv.gk_TKE.size(); l-- > 0;) {
      RETURN_IF_ERROR(receive_and_add(kGk, kv.gk_TKE[l]));
      RETURN_IF_ERROR(receive_and_add(kGv, kv.gv_TKE[l]));
    }
    return absl::OkStatus();
  });
}

absl::Status SplitExchange::GiveUp(int to, const absl::Status& cause) {
  return RunExchange([&] { return SendWord(to, static_cast<int64_t>(cause.code())); });
}

absl::Status SplitExchange::DropKv(int from, int64_t rows) {
  return RunExchange([&] { return Drop(kK, kV, from, Scratch(rows, context_.weights->run_dtype)); });
}

absl::Status SplitExchange::DropGradients(int from, int64_t rows) {
  return RunExchange([&] { return Drop(kGk, kGv, from, Scratch(rows, context_.weights->accumulate_dtype)); });
}

absl::Status SplitExchange::SendWord(int to, int64_t word) {
  const at::Tensor value = at::from_blob(&word, {1}, at::kLong);
  return data_.Send(kWord, value, to);
}

absl::Status SplitExchange::ReceiveWord(int from) {
  int64_t word = kValuesFollow;
  at::Tensor value = at::from_blob(&word, {1}, at::kLong);
  RETURN_IF_ERROR(data_.Receive(kWord, value, from));
  if (word == kValuesFollow) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", from, " of axis ", data_.axis(), " gave its part of the pass up: ",
                                         absl::StatusCodeToString(static_cast<absl::StatusCode>(word))));
}

absl::Status SplitExchange::Send(const char* name, const at::Tensor& values, int to) {
  RETURN_IF_ERROR(data_.Send(name, values, to));
  sent_bytes_ += static_cast<int64_t>(values.nbytes());
  return absl::OkStatus();
}

absl::Status SplitExchange::Drop(const char* first, const char* second, int from, at::Tensor scratch) {
  if (absl::Status word = ReceiveWord(from); !word.ok()) return absl::IsAborted(word) ? absl::OkStatus() : word;
  for (int64_t l = 0; l < context_.weights->config.num_layers; ++l) {
    RETURN_IF_ERROR(data_.Receive(first, scratch, from));
    RETURN_IF_ERROR(data_.Receive(second, scratch, from));
  }
  return absl::OkStatus();
}

at::Tensor SplitExchange::Scratch(int64_t rows, at::ScalarType dtype) const {
  const ModelConfig& config = context_.weights->config;
  return at::empty({rows, config.num_kv_heads, config.head_size}, context_.backend->options(dtype));
}

}  // namespace stemma::worker
