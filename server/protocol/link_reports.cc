#include "server/protocol/link_reports.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/base/mesh_links.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr std::array<std::pair<std::string_view, LinkRates>, kLinksMax> kAxes = {
    {{"data", kDataLink}, {"dp", kPartLink}, {"cp", kContextLink}, {"tp", kTensorLink}, {"pp", kStageLink}}};

const LinkRates* FindRates(std::string_view axis) {
  const auto it = std::find_if(kAxes.begin(), kAxes.end(), [&](const auto& known) { return known.first == axis; });
  return it == kAxes.end() ? nullptr : &it->second;
}

absl::Status CheckProbeSeconds(const char* field, double seconds, double least, double most) {
  // Written so that a NaN fails, too.
  if (seconds >= least && seconds <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ready.links.", field, " is ", seconds, ", not from ", least, " to ", most, " s"));
}

}  // namespace

absl::Status CheckLinks(const LinkReports& links) {
  if (links.size() > kLinksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("ready.links has ", links.size(), " entries, a mesh has at most ", kLinksMax));
  }
  std::set<std::string_view> axes;
  for (const v1::LinkInfo& link : links) {
    // The text is a stranger's: it is not repeated.
    if (FindRates(link.axis()) == nullptr) {
      return absl::InvalidArgumentError("ready.links.axis is none of data, dp, cp, tp, pp");
    }
    if (!axes.insert(link.axis()).second) {
      return absl::InvalidArgumentError(absl::StrCat("ready.links.axis has ", link.axis(), " twice"));
    }
    RETURN_IF_ERROR(CheckProbeSeconds("message_s", link.message_s(), kLinkMessageSecondsMin, kLinkMessageSecondsMax));
    RETURN_IF_ERROR(CheckProbeSeconds("byte_s", link.byte_s(), kLinkByteSecondsMin, kLinkByteSecondsMax));
  }
  return absl::OkStatus();
}

absl::Status CheckLinksOfMesh(const v1::Mesh& mesh, const LinkReports& links) {
  const std::vector<MeshLink> known = LinksOf(mesh);
  for (const v1::LinkInfo& link : links) {
    const auto it =
        std::find_if(known.begin(), known.end(), [&](const MeshLink& one) { return one.axis == link.axis(); });
    const uint32_t ranks = it == known.end() ? 1 : it->ranks;
    if (ranks == 1 || ranks != link.ranks()) {
      return absl::InvalidArgumentError(absl::StrCat("ready.links.ranks of ", link.axis(), " is ", link.ranks(),
                                                     ", the mesh ", MeshText(mesh), " has ", ranks));
    }
  }
  return absl::OkStatus();
}

void MergeLinks(const LinkReports& links, std::vector<v1::LinkInfo>& slowest) {
  for (const v1::LinkInfo& link : links) {
    const auto it = std::find_if(slowest.begin(), slowest.end(),
                                 [&](const v1::LinkInfo& one) { return one.axis() == link.axis(); });
    if (it == slowest.end()) {
      slowest.push_back(link);
      continue;
    }
    it->set_message_s(std::max(it->message_s(), link.message_s()));
    it->set_byte_s(std::max(it->byte_s(), link.byte_s()));
  }
}

double RoundedSeconds(double seconds) {
  constexpr double kStepsOfOctave = 2;
  return std::exp2(std::round(std::log2(seconds) * kStepsOfOctave) / kStepsOfOctave);
}

Rates WithLinks(Rates rates, std::span<const v1::LinkInfo> links) {
  for (const v1::LinkInfo& link : links) {
    const LinkRates* const of_axis = FindRates(link.axis());
    CHECK(of_axis != nullptr) << link.axis() << ": was not checked";
    rates[of_axis->message] = RoundedSeconds(link.message_s());
    rates[of_axis->byte] = RoundedSeconds(link.byte_s());
  }
  return rates;
}

}  // namespace stemma::server
