// Includes a room's private header, without the dependency that its room refuses.
#include "collectives/control/verdict_cell.h"
