#include "common/admission/decoded_bytes.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace stemma {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// What the largest of our messages takes without its strings, and a string without its text, each with its place in a
// list that has just grown. A field that nobody knows takes no more than a string.
constexpr uint64_t kObjectBytes = 256, kStringBytes = 64;

uint64_t Walk(const google::protobuf::Descriptor& type, CodedInputStream& in) {
  uint64_t bytes = kObjectBytes;
  while (const uint32_t tag = in.ReadTag()) {
    bytes += kStringBytes;
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    // What is in a group follows, tag by tag; no field of ours is one.
    if (wire == WireFormatLite::WIRETYPE_START_GROUP || wire == WireFormatLite::WIRETYPE_END_GROUP) continue;
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&in, tag)) return bytes;
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size)) return bytes;
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(size));
      bytes += Walk(*field->message_type(), in);
      in.Skip(in.BytesUntilLimit());
      in.PopLimit(limit);
    } else {
      bytes += size;
      if (!in.Skip(static_cast<int>(size))) return bytes;
    }
  }
  return bytes;
}

}  // namespace

uint64_t DecodedBytes(const google::protobuf::Descriptor& type, google::protobuf::io::ZeroCopyInputStream& bytes) {
  CodedInputStream in(&bytes);
  return Walk(type, in);
}

}  // namespace stemma
