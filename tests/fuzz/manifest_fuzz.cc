// manifest.json of a checkpoint: refused, or written and read back as the same; and its parts make files with good
// names, of which no byte has two writers.
#include <string>
#include <vector>

#include "glog/logging.h"
#include "server/store/checkpoint_manifest.h"
#include "server/store/checkpoint_parts.h"
#include "tests/fuzz/fuzz_target.h"

namespace stemma::fuzz {

std::vector<std::string> Seeds() {
  internal::v1::CheckpointManifest manifest;
  manifest.set_version(server::kManifestVersion);
  manifest.set_name("step-00000120");
  manifest.set_step(120);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    internal::v1::CheckpointPart& part = *manifest.add_parts();
    part.set_file("optim/exp_avg-model.safetensors");
    part.set_rank(rank);
    part.set_sha256(std::string(64, 'a'));
    part.add_ranges()->set_bytes(16);
    part.mutable_ranges(0)->set_begin(16 * rank);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {  // columns of a matrix
    internal::v1::ByteRange& columns = *manifest.mutable_parts(static_cast<int>(rank))->add_ranges();
    columns.set_begin(32 + 4 * rank);
    columns.set_bytes(4);
    columns.set_runs(3);
    columns.set_stride(8);
  }
  const std::string short_one =
      R"({"version":2,"name":"a","parts":[{"file":"additional_chat_templates/a.jinja"}],"seal":")";
  return {server::EncodeManifest(manifest).value(), short_one + std::string(64, '0') + "\"}"};
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  // Sealed here: the seal would hide all that is read after it.
  const auto manifest = server::DecodeManifest(server::Sealed({reinterpret_cast<const char*>(data), size}));
  if (!manifest.ok()) return 0;
  const auto text = server::EncodeManifest(*manifest);
  CHECK(text.ok()) << text.status();
  const auto again = server::DecodeManifest(*text);
  CHECK(again.ok()) << again.status();
  CHECK_EQ(server::EncodeManifest(*again).value(), *text);
  const auto files = server::ArrangeParts(manifest->parts());
  if (!files.ok()) return 0;
  for (const auto& [name, file] : *files) {
    CHECK(server::CheckPartName(name).ok()) << name;
    uint64_t end = 0;
    for (server::PieceOrder order(file.ranges); !order.done();) {
      const server::FilePiece piece = order.Take();
      CHECK_EQ(piece.begin, end) << name;
      end += piece.bytes;
    }
    CHECK_EQ(end, file.bytes) << name;
  }
  return 0;
}
