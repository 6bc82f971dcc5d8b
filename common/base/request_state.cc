#include "common/base/request_state.h"

namespace stemma {

bool IsFinal(v1::RequestState state) {
  return state == v1::DONE || state == v1::FAILED || state == v1::CANCELLED || state == v1::ROLLED_BACK;
}

}  // namespace stemma
