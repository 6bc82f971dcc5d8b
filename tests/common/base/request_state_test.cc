#include "common/base/request_state.h"

#include <set>

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(RequestStateTest, AnEndedRequestIsInAFinalState) {
  std::set<int> final_states;
  for (int state = v1::RequestState_MIN; state <= v1::RequestState_MAX; ++state) {
    if (v1::RequestState_IsValid(state) && IsFinal(static_cast<v1::RequestState>(state))) final_states.insert(state);
  }
  EXPECT_EQ(final_states, (std::set<int>{v1::DONE, v1::FAILED, v1::CANCELLED, v1::ROLLED_BACK}));
}

}  // namespace
}  // namespace stemma
