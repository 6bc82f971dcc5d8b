#include "worker/engine/rank_export.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "worker/engine/exceptions.h"
#include "worker/model/weights_export.h"

namespace stemma::worker {
namespace {

constexpr int64_t kPathBytesMax = 4096;  // with the zero that ends it

class RankExport {
 public:
  RankExport(const Weights& weights, const OptimizerShards& shards, Communicator& ranks)
      : weights_(weights), ranks_(ranks), owned_(static_cast<size_t>(ranks.size())) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      std::vector<ParameterRange>& by_parameter = owned_[static_cast<size_t>(rank)];
      by_parameter.resize(weights.parameters.size());
      for (const ParameterRange& range : shards.owned(rank)) by_parameter[static_cast<size_t>(range.parameter)] = range;
    }
  }

  absl::StatusOr<uint64_t> Run(const ModelDirectory& source, const ExportTarget& target) {
    RETURN_IF_ERROR(Agree("export begun", CatchExceptions([&] { return Begin(source, target); })));
    RETURN_IF_ERROR(ShareFolder());
    PassFailpoint("export.begun");
    absl::Status written;
    for (size_t i = 0; i < export_->files().size(); ++i) RETURN_IF_ERROR(WriteFile(i, written));
    PassFailpoint("export.written");
    RETURN_IF_ERROR(Agree("export written", written));
    RETURN_IF_ERROR(Agree("export renamed", folder_.has_value() ? folder_->Commit() : absl::OkStatus()));
    return bytes_;
  }

 private:
  bool first() const { return ranks_.rank() == 0; }

  void PassFailpoint(std::string_view place) const { Failpoint(place, static_cast<uint32_t>(ranks_.rank())); }

  // Returns this rank's failure, or Aborted where another has one. Errors: Unavailable.
  absl::Status Agree(const char* what, const absl::Status& own) {
    int64_t cannot = own.ok() ? 0 : 1;
    RETURN_IF_ERROR(ranks_.Agree(what, {&cannot, 1}));
    if (own.ok() && cannot != 0) return absl::AbortedError("another rank could not export; its answer says why");
    return own;
  }

  absl::Status Begin(const ModelDirectory& source, const ExportTarget& target) {
    ASSIGN_OR_RETURN(WeightsExport made, WeightsExport::Make(weights_, source, target.dtype));
    export_.emplace(std::move(made));
    path_ = at::zeros({kPathBytesMax}, at::kByte);
    if (ranks_.size() > 1) values_ = at::empty({kExportPieceElements}, weights_.parameters.front().grad.options());
    if (!first()) return absl::OkStatus();
    std::error_code error;
    if (std::filesystem::exists(target.path, error)) {
      return absl::AlreadyExistsError(target.path + " exists: choose another name, or remove it");
    }
    ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create(target.path));
    folder_.emplace(std::move(folder));
    if (folder_->path().size() >= static_cast<size_t>(kPathBytesMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat(target.path, ": a path has at most ", kPathBytesMax - 1, " bytes"));
    }
    std::memcpy(path_.data_ptr(), folder_->path().data(), folder_->path().size());
    return export_->WriteOtherFiles(folder_->path());
  }

  absl::Status ShareFolder() {
    RETURN_IF_ERROR(ranks_.Broadcast("export folder", path_, /*root=*/0));
    path_text_ = static_cast<const char*>(path_.data_ptr());
    return absl::OkStatus();
  }

  // Writes a file, if it is this rank's and nothing has failed yet. Errors: Unavailable; others go to `written`.
  absl::Status WriteFile(size_t index, absl::Status& written) {
    const ExportFile& file = export_->files()[index];
    const int writer = static_cast<int>(index % static_cast<size_t>(ranks_.size()));
    const bool own = writer == ranks_.rank();
    std::optional<ExportFileWriter> to;
    const auto if_sound = [&](const auto& fn) {
      if (own && written.ok()) written = CatchExceptions(fn);
    };
    if_sound([&]() -> absl::Status {
      ASSIGN_OR_RETURN(ExportFileWriter created, ExportFileWriter::Create(file, path_text_));
      to.emplace(std::move(created));
      return absl::OkStatus();
    });
    for (const ExportPiece& piece : file.pieces) {
      at::Tensor values;
      if (piece.tensor != nullptr) RETURN_IF_ERROR(Gather(piece, writer, values));
      if_sound([&] { return to->Write(piece, values); });
    }
    if_sound([&]() -> absl::Status {
      ASSIGN_OR_RETURN(const uint64_t bytes, to->Close());
      bytes_ += bytes;
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  // Gives the writer the master's elements of a piece, from the ranks that own them. Errors: Unavailable.
  absl::Status Gather(const ExportPiece& piece, int writer, at::Tensor& values) {
    const Parameter& p = weights_.at(piece.tensor->parameter);
    const int64_t row_elements = p.weight.numel() / p.weight.size(0);
    const int64_t begin = piece.tensor->row_begin * row_elements + piece.begin, end = begin + piece.count;
    if (p.master_is_weight() || ranks_.size() == 1) {
      values = p.MasterElements(begin, piece.count);
      return absl::OkStatus();
    }
    values = values_.narrow(0, 0, piece.count);
    for (int owner = 0; owner < ranks_.size(); ++owner) {
      const ParameterRange& owned = owned_[static_cast<size_t>(owner)][static_cast<size_t>(piece.tensor->parameter)];
      const int64_t from = std::max(begin, owned.begin), count = std::min(end, owned.end()) - from;
      if (count <= 0) continue;
      at::Tensor to = values.narrow(0, from - begin, count);
      if (owner == ranks_.rank()) {
        to.copy_(p.MasterElements(from, count));  // a state may be in host memory
        if (owner != writer) RETURN_IF_ERROR(ranks_.Send("masters", to, writer));
      } else if (writer == ranks_.rank()) {
        RETURN_IF_ERROR(ranks_.Receive("masters", to, owner));
      }
    }
    return absl::OkStatus();
  }

  const Weights& weights_;
  Communicator& ranks_;
  std::vector<std::vector<ParameterRange>> owned_;  // by rank and parameter; an empty one where it owns nothing
  std::optional<WeightsExport> export_;
  std::optional<TemporaryFolder> folder_;  // of rank 0
  at::Tensor path_, values_;
  std::string path_text_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> ExportOnRanks(const Weights& weights, const ModelDirectory& source, const ExportTarget& target,
                                       const OptimizerShards& shards, Communicator& ranks) {
  const at::NoGradGuard no_grad;
  return RankExport(weights, shards, ranks).Run(source, target);
}

}  // namespace stemma::worker
