// A trace file: each line is refused, or is written and read back as the same request.
#include <optional>
#include <string>
#include <vector>

#include "common/trace/trace.h"
#include "glog/logging.h"
#include "tests/common/admission/sent_stream.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/scratch.h"

namespace stemma::fuzz {
namespace {

constexpr char kSchemaLine[] = "{\"schema\": \"stemma.trace.v1\"}\n";

std::string Text(const TraceRequest& request, TraceArrays arrays) {
  const auto text = FormatTraceRequest(request, arrays);
  CHECK(text.ok()) << text.status();
  return *text;
}

void CheckRoundTrip(const TraceRequest& request) {
  const std::string text = Text(request, TraceArrays::kBase64);
  const auto again = ParseTraceRequest(text);
  CHECK(again.ok()) << again.status();
  CHECK_EQ(Text(*again, TraceArrays::kBase64), text);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const TraceArrays arrays : {TraceArrays::kNumbers, TraceArrays::kBase64}) {
    const Stream stream;
    const std::string line = Text({stream.header, stream.groups}, arrays);
    seeds.push_back(kSchemaLine + line + "\n\n" + line + "\n");
  }
  return seeds;
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  static const fuzz::Scratch scratch;
  const std::string path = scratch.Write("trace.jsonl", {reinterpret_cast<const char*>(data), size});
  auto reader = TraceReader::Open(path);
  while (reader.ok()) {
    const auto line = reader->Next();
    if (!line.ok() || !line->has_value()) break;
    fuzz::CheckRoundTrip((*line)->request);
  }
  return 0;
}
