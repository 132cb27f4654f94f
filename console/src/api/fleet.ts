import { createClient } from "@connectrpc/connect";
import { FleetService } from "../gen/retinue/manager/v1/fleet_service_pb";
import { transport } from "./transport";

export const fleet = createClient(FleetService, transport);
