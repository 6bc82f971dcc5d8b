#include "common/base/json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

using nlohmann::json;

// Walks the events of a parse without building anything; says what is wrong first.
class Checker : public nlohmann::json_sax<json> {
 public:
  explicit Checker(const JsonLimits& limits) : limits_(limits) {}
  const std::string& error() const { return error_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool start_object(std::size_t) override { return Enter(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }

  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) return Fail(absl::StrCat("key ", JsonExcerpt(key), " appears twice"));
    return Count();
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& exception) override {
    std::string what = exception.what();
    if (const size_t colon = what.rfind("; last read"); colon != std::string::npos) what.resize(colon);
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t id_end = what.find("] "); id_end != std::string::npos) what = what.substr(id_end + 2);
    if (const size_t at = what.find(": "); at != std::string::npos) what = what.substr(at + 2);
    return Fail(absl::StrCat("not JSON at byte ", position, ": ", what.substr(0, 200)));
  }

 private:
  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }
  bool Count() {
    if (++num_values_ > limits_.max_values) return Fail(absl::StrCat("more than ", limits_.max_values, " JSON values"));
    return true;
  }
  bool Enter() {
    if (static_cast<int>(keys_.size()) >= limits_.max_depth) {
      return Fail(absl::StrCat("JSON is nested deeper than ", limits_.max_depth));
    }
    keys_.emplace_back();
    return Count();
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  int64_t num_values_ = 0;
  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the open objects and arrays
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, const JsonLimits& limits) {
  // The library takes a zero byte for the end of its input.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON at byte ", zero + 1, ": a zero byte"));
  }
  Checker checker(limits);
  if (!json::sax_parse(text, &checker)) return absl::InvalidArgumentError(checker.error());
  return json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
}

std::string JsonTypeName(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string JsonExcerpt(const json& value) {
  if (value.is_structured()) return JsonTypeName(value);
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace stemma
