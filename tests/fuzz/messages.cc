#include "tests/fuzz/messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "tests/fuzz/fuzz_target.h"

namespace stemma::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr uint64_t kWholeNumbers[] = {
    0, 1, 2, 3, 7, 127, 255, 1u << 16, INT32_MAX, UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX - 1, UINT64_MAX};
constexpr double kNumbers[] = {0,
                               -0.0,
                               1,
                               -1,
                               0.5,
                               1e-300,
                               1e300,
                               -1e300,
                               1e38,
                               4e38,
                               1e16,
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};

class Mutator {
 public:
  Mutator(const std::vector<std::unique_ptr<Message>>& messages, unsigned seed) : random_(seed) {
    for (const auto& message : messages) Collect(*message);
  }

  size_t Below(size_t bound) { return random_() % bound; }

  // Changes one thing of the message, at any depth.
  void Change(Message& message) {
    const auto* descriptor = message.GetDescriptor();
    if (descriptor->field_count() == 0) return;
    std::vector<const FieldDescriptor*> set;
    message.GetReflection()->ListFields(message, &set);
    const bool one_that_is_set = !set.empty() && Below(4) != 0;
    const FieldDescriptor* field =
        one_that_is_set ? set[Below(set.size())]
                        : descriptor->field(static_cast<int>(Below(static_cast<size_t>(descriptor->field_count()))));
    if (field->is_repeated()) {
      ChangeRepeated(message, *field);
    } else {
      ChangeSingle(message, *field);
    }
  }

 private:
  // Strings and numbers of the input, so that an id of one message comes to stand in another.
  void Collect(const Message& message) {
    const Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      for (int i = 0; i < count; ++i) {
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
          Collect(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                       : reflection.GetMessage(message, field));
        } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
          strings_.push_back(field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                                  : reflection.GetString(message, field));
        } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && !field->is_repeated()) {
          numbers_.push_back(reflection.GetUInt64(message, field));
        }
      }
    }
  }

  void ChangeRepeated(Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    const int count = reflection.FieldSize(message, &field);
    const int at = count == 0 ? 0 : static_cast<int>(Below(static_cast<size_t>(count)));
    switch (count == 0 ? 0 : Below(5)) {
      case 0:
        return Add(message, field);
      case 1:
        reflection.SwapElements(&message, &field, at, count - 1);
        return reflection.RemoveLast(&message, &field);
      case 2:
        return reflection.SwapElements(&message, &field, at, static_cast<int>(Below(static_cast<size_t>(count))));
      default:
        break;
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return Add(message, field);
    Change(*reflection.MutableRepeatedMessage(&message, &field, at));
  }

  // Adds an element: a new one, or a copy of another.
  void Add(Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    const int count = reflection.FieldSize(message, &field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        std::unique_ptr<Message> copy;
        if (count > 0 && Below(2) == 0) {
          const Message& other =
              reflection.GetRepeatedMessage(message, &field, static_cast<int>(Below(static_cast<size_t>(count))));
          copy.reset(other.New());
          copy->CopyFrom(other);
        }
        Message* added = reflection.AddMessage(&message, &field);
        return copy == nullptr ? Change(*added) : added->CopyFrom(*copy);
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.AddString(&message, &field, String(""));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.AddUInt32(&message, &field, static_cast<uint32_t>(WholeNumber(0)));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.AddUInt64(&message, &field, WholeNumber(0));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reflection.AddDouble(&message, &field, Number(0));
      default:
        return;
    }
  }

  void ChangeSingle(Message& message, const FieldDescriptor& field) {
    const Reflection& reflection = *message.GetReflection();
    if (Below(8) == 0) return reflection.ClearField(&message, &field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Change(*reflection.MutableMessage(&message, &field));
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection.SetString(&message, &field, String(reflection.GetString(message, &field)));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection.SetBool(&message, &field, Below(2) == 0);
      case FieldDescriptor::CPPTYPE_ENUM:  // one more than there are: a word that this version does not know
        return reflection.SetEnumValue(
            &message, &field, static_cast<int>(Below(static_cast<size_t>(field.enum_type()->value_count()) + 1)));
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(
            &message, &field,
            static_cast<int32_t>(WholeNumber(static_cast<uint64_t>(reflection.GetInt32(message, &field)))));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection.SetInt64(
            &message, &field,
            static_cast<int64_t>(WholeNumber(static_cast<uint64_t>(reflection.GetInt64(message, &field)))));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.SetUInt32(&message, &field,
                                    static_cast<uint32_t>(WholeNumber(reflection.GetUInt32(message, &field))));
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection.SetUInt64(&message, &field, WholeNumber(reflection.GetUInt64(message, &field)));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection.SetFloat(&message, &field, static_cast<float>(Number(0)));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return reflection.SetDouble(&message, &field, Number(reflection.GetDouble(message, &field)));
    }
  }

  uint64_t WholeNumber(uint64_t before) {
    switch (Below(4)) {
      case 0:
        return before + 1;
      case 1:
        return before - 1;
      case 2:
        return numbers_.empty() ? 0 : numbers_[Below(numbers_.size())];
      default:
        return kWholeNumbers[Below(std::size(kWholeNumbers))];
    }
  }

  double Number(double before) {
    return Below(3) == 0 ? before * (Below(2) == 0 ? -1 : 0.5) : kNumbers[Below(std::size(kNumbers))];
  }

  std::string String(const std::string& before) {
    if (!strings_.empty() && Below(2) == 0) return strings_[Below(strings_.size())];
    std::string text = before;
    text.resize(before.size() + 8);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), before.size(), text.size()));
    // Text that is not UTF-8 would end the parse of its whole message.
    for (char& c : text) {
      if (Below(64) != 0) c = static_cast<char>(c & 0x7f);
    }
    return text;
  }

  std::mt19937 random_;
  std::vector<std::string> strings_;
  std::vector<uint64_t> numbers_;
};

// Does one thing to the list: mostly to one message of it.
void ChangeList(const Message& prototype, Mutator& mutator, std::vector<std::unique_ptr<Message>>& messages) {
  const size_t at = messages.empty() ? 0 : mutator.Below(messages.size());
  switch (messages.empty() ? 1 : mutator.Below(10)) {
    case 0:
      messages.erase(messages.begin() + static_cast<int64_t>(at));
      return;
    case 1:
      mutator.Change(**messages.emplace(messages.begin() + static_cast<int64_t>(at), prototype.New()));
      return;
    case 2: {
      std::unique_ptr<Message> copy(prototype.New());
      copy->CopyFrom(*messages[at]);
      messages.insert(messages.begin() + static_cast<int64_t>(mutator.Below(messages.size() + 1)), std::move(copy));
      return;
    }
    case 3:
      return std::swap(messages[at], messages[mutator.Below(messages.size())]);
    default:
      return mutator.Change(*messages[at]);
  }
}

}  // namespace

std::vector<std::string> SplitMessages(std::string_view input) {
  std::vector<std::string> messages;
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(input.data()),
                                                static_cast<int>(input.size()));
  uint32_t length = 0;
  while (stream.ReadVarint32(&length)) {
    const size_t at = static_cast<size_t>(stream.CurrentPosition());
    length = static_cast<uint32_t>(std::min<size_t>(length, input.size() - at));
    messages.emplace_back(input.substr(at, length));
    stream.Skip(static_cast<int>(length));
  }
  return messages;
}

std::string JoinMessages(const std::vector<std::string>& messages) {
  std::string input;
  for (const std::string& message : messages) {
    uint8_t length[5];
    const uint8_t* end =
        google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(message.size()), length);
    input.append(reinterpret_cast<const char*>(length), static_cast<size_t>(end - length));
    input += message;
  }
  return input;
}

size_t MutateMessages(const Message& prototype, uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::vector<std::unique_ptr<Message>> messages;
  for (const std::string& text : SplitMessages({reinterpret_cast<const char*>(data), size})) {
    messages.emplace_back(prototype.New())->ParsePartialFromString(text);  // what of it can be read
  }
  Mutator mutator(messages, seed);
  if (mutator.Below(16) == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (size_t changes = 1 + mutator.Below(3); changes > 0; --changes) ChangeList(prototype, mutator, messages);
  std::vector<std::string> texts;
  for (const auto& message : messages) texts.push_back(message->SerializePartialAsString());
  const std::string input = JoinMessages(texts);
  if (input.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, input.data(), input.size());
  return input.size();
}

}  // namespace stemma::fuzz
