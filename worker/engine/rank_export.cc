#include "worker/engine/rank_export.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_folder.h"
#include "worker/engine/exceptions.h"
#include "worker/model/weights_export.h"

namespace stemma::worker {
namespace {

class RankExport {
 public:
  RankExport(const Weights& weights, const ParameterRanges& owned, const MeshRanks& ranks)
      : weights_(weights), owned_(owned), ranks_(ranks) {}

  absl::StatusOr<uint64_t> Run(const ModelDirectory& source, const ExportTarget& target) {
    RETURN_IF_ERROR(Agree("export_begun", CatchExceptions([&] { return Begin(source, target); })));
    PassFailpoint("export.begun");
    const absl::Status written = CatchExceptions([&] { return Write(target.folder); });
    PassFailpoint("export.written");
    RETURN_IF_ERROR(Agree("export_written", written));
    RETURN_IF_ERROR(Agree("export_renamed", folder_.has_value() ? folder_->Commit() : absl::OkStatus()));
    return bytes_;
  }

 private:
  bool first() const { return ranks_.mesh_rank() == 0; }

  void PassFailpoint(std::string_view place) const { Failpoint(place, static_cast<uint32_t>(ranks_.mesh_rank())); }

  // Returns this rank's failure, or Aborted where another has one. Errors: Unavailable.
  absl::Status Agree(const char* what, const absl::Status& own) const {
    int64_t cannot = own.ok() ? 0 : 1;
    RETURN_IF_ERROR(ranks_.Agree(what, {&cannot, 1}));
    if (own.ok() && cannot != 0) return absl::AbortedError("another rank could not export; its answer says why");
    return own;
  }

  absl::Status Begin(const ModelDirectory& source, const ExportTarget& target) {
    ASSIGN_OR_RETURN(WeightsExport made, WeightsExport::Make(weights_, source, target.dtype, {owned_, first()}));
    export_.emplace(std::move(made));
    if (!first()) return absl::OkStatus();
    std::error_code error;
    if (std::filesystem::exists(target.path, error)) {
      return absl::AlreadyExistsError(target.path + " exists: choose another name, or remove it");
    }
    ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Take(target.folder, target.path));
    folder_.emplace(std::move(folder));
    return export_->WriteOtherFiles(folder_->path());
  }

  absl::Status Write(const std::string& folder) {
    for (const ExportFile& file : export_->files()) {
      ASSIGN_OR_RETURN(const uint64_t bytes, export_->Write(file, folder));
      bytes_ += bytes;
    }
    return absl::OkStatus();
  }

  const Weights& weights_;
  const ParameterRanges& owned_;
  const MeshRanks& ranks_;
  std::optional<WeightsExport> export_;
  std::optional<TemporaryFolder> folder_;  // of rank 0
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> ExportOnRanks(const Weights& weights, const ModelDirectory& source, const ExportTarget& target,
                                       const ParameterRanges& owned, const MeshRanks& ranks) {
  const at::NoGradGuard no_grad;
  return RankExport(weights, owned, ranks).Run(source, target);
}

}  // namespace stemma::worker
