// The tensors of one call of a kernel under the start-up self-check, guarded by NaN, and what the call wrote.
//
// A case runs two times, on the candidate and on the reference, and draws the same numbers in both: the candidate has
// them in the run's dtypes, the reference has the same rounded numbers in fp64. What a kernel has to write holds NaN
// before, so that an element that it left out is seen. NaN stands before and after every tensor, so that what is read
// past an end shows in the result, and what is written there is seen. Private to worker/backend/self_check.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stemma::worker::self_check {

// In which dtype the candidate has a tensor: the run's; the accumulate dtype; that of rows (accumulate_type.h).
enum class Numbers { kRun, kAcc, kRows };

// The largest error that each kind of numbers may have (Operands::CompareWith says of what).
struct Tolerances {
  double run = 0, acc = 0, rows = 0;
  double whole = 0;  // of the root mean square of all errors of a result, as a part of that of the result; 0: any
};

// How far what one call wrote is from the reference.
struct Difference {
  double error = 0, tolerance = 0;
  std::string reason;  // of a refusal; empty: admitted

  bool IsWorseThan(const Difference& other) const;
};

struct OperandsOptions {
  at::Device device;
  at::ScalarType run_dtype;
  uint64_t seed = 0;
  bool is_reference = false;
};

// How a tensor lies in memory: with its dims in order, or with the first two swapped.
enum class Layout { kInOrder, kFirstTwoSwapped };

class Operands {
 public:
  explicit Operands(const OperandsOptions& options);

  // The dtype that this side has the run's numbers in.
  at::ScalarType run_dtype() const { return options_.is_reference ? at::kDouble : options_.run_dtype; }

  // Draws normal numbers, in fp64 in host memory.
  at::Tensor Draw(at::IntArrayRef sizes);
  // Draws from 0 to high - 1, in host memory.
  at::Tensor DrawIntegers(int64_t high, int64_t count);

  // Rounds to the candidate's dtype of such numbers, in fp64 again.
  at::Tensor Rounded(const at::Tensor& values, Numbers numbers) const;

  // Operands that are read: drawn, or given in host memory. Whole numbers stay int64. `row_quantum`: from row to row of
  // the last dim is a multiple of so many elements, with NaN between the rows.
  at::Tensor Normal(at::IntArrayRef sizes, Numbers numbers, double scale = 1, Layout layout = Layout::kInOrder);
  at::Tensor Given(const at::Tensor& values, Numbers numbers, Layout layout = Layout::kInOrder,
                   int64_t row_quantum = 1);
  at::Tensor GivenIntegers(const at::Tensor& values);

  // Operands that are written, or added to numbers that are drawn. They are compared under `name`. `floor`: the typical
  // size that errors are compared with is no less.
  at::Tensor Written(const std::string& name, at::IntArrayRef sizes, Numbers numbers, Layout layout = Layout::kInOrder,
                     int64_t row_quantum = 1);
  at::Tensor AddedTo(const std::string& name, at::IntArrayRef sizes, Numbers numbers, double scale = 1,
                     double floor = 0);
  // Compares what a call replaced or returned, too, under the tolerance of `numbers`.
  void Compare(const std::string& name, const at::Tensor& result, Numbers numbers, double floor = 0);

  // Fills memory that a call is likely to be given for results of these sizes with NaN.
  void SpoilFreeMemory(const std::vector<std::vector<int64_t>>& sizes, Numbers numbers) const;

  // Brings what was written to the host: the device has done the call after it.
  void Fetch();
  // Returns the worst difference of these results from the reference's, element by element: |a - b| / (|b| + s), where
  // s is the root mean square of b, or the floor. Both were fetched.
  Difference CompareWith(const Operands& reference, const Tolerances& tolerances) const;

 private:
  struct Result {
    std::string name;
    at::Tensor tensor;  // as the call left it
    Numbers numbers = Numbers::kRun;
    double floor = 0;
    at::Tensor host = {};  // fp64, once fetched
  };
  // The memory that holds an operand, and what lies between its rows, from `begin` to `end`.
  struct Guarded {
    at::Tensor memory, operand, between_rows;
    int64_t begin = 0, end = 0;
  };

  at::ScalarType DtypeOf(Numbers numbers) const;
  at::Tensor Guard(at::IntArrayRef sizes, Numbers numbers, Layout layout, int64_t row_quantum);
  static bool IsWhole(const Guarded& guarded);
  static Difference CompareOne(const Result& result, const Result& expected, const Tolerances& tolerances);

  OperandsOptions options_;
  at::Generator generator_;
  std::vector<Result> results_;
  std::vector<Guarded> guarded_;
  std::string written_outside_;  // once fetched: what of, empty: nothing
};

}  // namespace stemma::worker::self_check
