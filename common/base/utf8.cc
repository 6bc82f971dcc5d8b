#include "common/base/utf8.h"

#include <string>

#include "nlohmann/json.hpp"

namespace stemma {

bool IsUtf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string with_question_marks =
      Json(std::string(text)).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  const std::string without =
      Json(std::string(text)).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::ignore);
  return with_question_marks == without;
}

}  // namespace stemma
