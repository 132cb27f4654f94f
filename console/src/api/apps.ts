import { createClient } from "@connectrpc/connect";
import { AppService } from "../gen/retinue/manager/v1/app_service_pb";
import { transport } from "./transport";

export const apps = createClient(AppService, transport);
