import { createClient } from "@connectrpc/connect";
import { TemplateService } from "../gen/retinue/manager/v1/template_service_pb";
import { transport } from "./transport";

export const templates = createClient(TemplateService, transport);
