// Named places at which a test lets a process be killed, stopped, held or delayed, or lets what follows fail: between
// the two sides of everything that other processes wait for. The programs that users run are linked with
// failpoint_off.cc, where nothing happens; copies of them that only tests start, with tests/testing/failpoints, where a
// folder says what happens.
//
// Any thread. The names stand in the sources as literals; tests/e2e/recovery/places_test.py and
// tests/e2e/gang/gang_places_test.py strike each of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace stemma {

// Passes the place, as that rank of the mesh; the server is rank 0 at places of its own.
void Failpoint(std::string_view place, uint32_t rank);

// Passes the place, and returns whether what follows is to fail, as its caller says: a write that the disk refuses, a
// message that is lost.
[[nodiscard]] bool FailpointFails(std::string_view place, uint32_t rank);

}  // namespace stemma
