// Named places at which a test lets a process be killed, stopped or held: between the two sides of everything that
// other processes wait for. The programs that users run are linked with failpoint_off.cc, where nothing happens; copies
// of them that only tests start, with tests/testing/failpoints, where a folder says what happens.
//
// Any thread. The names stand in the sources as literals; tests/e2e/gang/gang_places_test.py strikes each of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace stemma {

// Passes the place, as that rank of the mesh.
void Failpoint(std::string_view place, uint32_t rank);

}  // namespace stemma
