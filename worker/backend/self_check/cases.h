// What each entry of the kernel table, and attention, is called with in the start-up self-check: rows of aligned and of
// odd width, tails, a single row, extreme numbers, masked rows, each mode of the loss.
//
// A case calls one entry of a side on operands that it makes. Private to worker/backend/self_check.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/backend/backend.h"
#include "worker/backend/self_check/operands.h"
#include "worker/backend/self_check/self_check.h"

namespace stemma::worker::self_check {

// Candidate or reference, and which forms of operands it is called with.
struct Side {
  const Kernels& kernels;
  const AttentionOp& attention;
  bool queries_by_token = false;
  bool dlogits_in_run_dtype = false;
  int64_t logits_row_quantum = 1;

  Layout queries_layout() const { return queries_by_token ? Layout::kFirstTwoSwapped : Layout::kInOrder; }
};

struct Case {
  std::string name;  // its shape: refusals begin with it
  std::function<void(const Side&, Operands&)> run;
  bool is_large = false;  // takes a CPU long: CheckSetting
};

std::vector<Case> RmsNormForwardCases(const CheckShape& shape);
std::vector<Case> RmsNormBackwardCases(const CheckShape& shape);
std::vector<Case> SwigluForwardCases(const CheckShape& shape);
std::vector<Case> SwigluBackwardCases(const CheckShape& shape);
std::vector<Case> QkvForwardCases(const CheckShape& shape);
std::vector<Case> QkvBackwardCases(const CheckShape& shape);
std::vector<Case> EmbeddingBackwardCases(const CheckShape& shape);
std::vector<Case> HeadForwardCases(const CheckShape& shape);
std::vector<Case> HeadBackwardCases(const CheckShape& shape);
std::vector<Case> LossCases(const CheckShape& shape);
std::vector<Case> AddWeightGradientCases(const CheckShape& shape);
std::vector<Case> LogitsCases(const CheckShape& shape);
std::vector<Case> LogitsBackwardCases(const CheckShape& shape);
std::vector<Case> WordSumCases(const CheckShape& shape);
std::vector<Case> VectorNormCases(const CheckShape& shape);
std::vector<Case> FirstNonfiniteCases(const CheckShape& shape);
std::vector<Case> AttentionCases(const CheckShape& shape);

}  // namespace stemma::worker::self_check
